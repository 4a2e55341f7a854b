#include "launch/router/router_settings.hpp"

#include "runtime/rank_settings.hpp"

#include <array>

namespace hicache {

namespace {

template <auto Member>
setting_value weight(router_options& x) {
  return &(x.weights.*Member);
}

constexpr auto of_router = std::to_array<setting<router_options>>({
  {"listen", "HOST:PORT", at<&router_options::listen>,
   "address of the API; port 0 picks a free one; one that other machines reach needs "
   "`--insecure`"},
  {"insecure", "", at<&router_options::insecure>,
   "lets `--listen` be reached by other machines: whoever reaches it can complete prompts and read "
   "metrics"},
  {"admin-socket", "PATH", at<&router_options::admin_socket>,
   "socket in the file system where this user [changes instances](router.md#instances); nowhere if "
   "absent"},
  {"shared-l3", "", at<&router_options::shares_l3>,
   "the instances share an L3: what one of them has stored, others load rather than compute"},
  {"max-requests", "N", at<&router_options::max_requests>,
   "completions under way at once, each by a thread; further ones are refused with 429",
   within(1, 4096)},
  {"retries", "N", at<&router_options::retries>,
   "further instances that a request goes to when one does not answer", within(0, 16)},
  {"connect-time", "TIME", at<&router_options::connect_time>,
   "how long a connection to an instance may take; its answer to a probe, twice that",
   within(0.01, 60)},
  {"request-time", "TIME", at<&router_options::request_time>,
   "how long a completion may take, with all attempts", within(0.1, 86400)},
  {"probe-period", "TIME", at<&router_options::probe_period>,
   "how often an instance is asked whether it answers", within(0.01, 3600)},
  {"probe-pause-max", "TIME", at<&router_options::probe_pause_max>,
   "longest pause before an instance that did not answer three times is asked again; it begins "
   "with `--probe-period` and doubles",
   within(0.01, 3600)},
  {"running-request-tokens", "TOKENS", weight<&route_weights::running_request>,
   "what a completion under way at an instance counts, in tokens to compute", within(0, 1'000'000)},
  {"l2-token-cost", "X", weight<&route_weights::l2_token>,
   "what loading a token from L2 counts, as a share of computing it", within(0, 1)},
  {"l3-token-cost", "X", weight<&route_weights::l3_token>,
   "with `--shared-l3`: what loading a token from L3 counts", within(0, 1)},
  {"shutdown-grace", "TIME", at<&router_options::shutdown_grace>,
   "how long a router that ends waits for completions under way", within(0, 86400)},
  {"log-level", "NAME", [](router_options& x) { return by_name(x.log_level); },
   "`trace`, `debug`, `info`, `warn`, `error` or `critical`"},
});

} // namespace

std::span<const setting<router_options>> router_settings() {
  return of_router;
}

} // namespace hicache
