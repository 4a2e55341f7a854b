#include "launch/router/router_server.hpp"

#include "base/try.hpp"
#include "launch/router/completion_proxy.hpp"
#include "launch/router/instance_watch.hpp"
#include "runtime/completions_api.hpp"
#include "runtime/http_listener.hpp"
#include "runtime/metric_families.hpp"
#include "runtime/network_flags.hpp"

#include <nlohmann/json.hpp>

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace hicache {

namespace {

using nlohmann::json;
using http_request = httplib::Request;
using http_response = httplib::Response;

constexpr auto body_bytes_max = size_t{16} << 20;

/// For a request to arrive, and for each write of its answer.
constexpr auto client_time = std::chrono::seconds{30};

/// Threads and connections for what is answered at once, also while all completions run.
constexpr auto spare_threads = size_t{16};
constexpr auto spare_connections = size_t{256};

instance_table::options table_options(const router_options& options) {
  auto chosen = instance_table::options{};
  chosen.weights = options.weights;
  chosen.shares_l3 = options.shares_l3;
  chosen.breaker.pause_min = options.probe_period;
  chosen.breaker.pause_max = std::max(options.probe_period, options.probe_pause_max);
  return chosen;
}

json to_json(const instance_status& status) {
  return {{"address", status.address},
          {"role", to_string(status.role)},
          {"events", status.events},
          {"state", status.is_probed ? to_string(status.breaker) : "unknown"},
          {"draining", status.is_draining},
          {"running", status.running},
          {"waiting_tokens", status.waiting_tokens},
          {"cached_pages", status.pages},
          {"events_lost", status.events_lost}};
}

std::vector<prometheus::MetricFamily> to_metrics(const std::vector<instance_status>& instances,
                                                 uint64_t retries) {
  auto families = metric_families{};
  families.add("hicache_router_retries_total", "Attempts to complete a prompt at another instance.",
               retries);
  for (const auto& each : instances) {
    const auto labels = metric_labels{{"upstream", each.address}};
    const auto add = [&](const char* name, const char* help, uint64_t value) {
      families.add(name, help, value, labels);
    };
    const auto is_up = each.is_probed && each.breaker == breaker_state::closed;
    add("hicache_router_instance_up", "1 if the instance answers, 0 if not.", is_up ? 1 : 0);
    add("hicache_router_instance_draining", "1 if it gets no new completions.",
        each.is_draining ? 1 : 0);
    add("hicache_router_running", "Completions under way.", each.running);
    add("hicache_router_waiting_tokens", "Tokens of prompts that it has still to compute.",
        each.waiting_tokens);
    add("hicache_router_cached_pages", "Pages that its events show in L1 or L2.", each.pages);
    add("hicache_router_events_lost_total", "Times that its events were lost.", each.events_lost);
    add("hicache_router_prompt_tokens_total", "Tokens of prompts sent to it.", each.prompt_tokens);
    add("hicache_router_expected_tokens_total", "Tokens of these that were expected in its caches.",
        each.expected_tokens);
    for (auto i = size_t{0}; i < request_outcomes.size(); ++i)
      families.add("hicache_router_requests_total", "Completions sent to it, by how they ended.",
                   each.outcomes.at(i),
                   {labels.front(), {"outcome", std::string{request_outcomes.at(i)}}});
  }
  return families.take();
}

/// @returns the status of the answer if the body does not arrive
std::optional<int> receive(const http_request& request, const httplib::ContentReader& reader,
                           std::string& body) {
  // Without either header there is no body, but httplib would wait for one.
  if (request.is_multipart_form_data()
      || (!request.has_header("Content-Length") && !request.has_header("Transfer-Encoding")))
    return 400;
  const auto is_whole = reader([&](const char* part, size_t size) {
    body.append(part, size);
    return body.size() <= body_bytes_max;
  });
  if (body.size() > body_bytes_max)
    return 413;
  return is_whole ? std::nullopt : std::optional{400};
}

class server_impl final : public router_server {
public:
  explicit server_impl(const router_options& options)
    : options_(options), table_(table_options(options)),
      proxy_(table_, {options.connect_time, options.request_time, options.retries}),
      front_(http_limits{client_time, body_bytes_max + (size_t{64} << 10),
                         options.max_requests + spare_threads,
                         options.max_requests + spare_connections}) {}

  ~server_impl() override {
    // No instance is added any more when the watches end.
    admin_.reset();
  }

  result<void> listen(const rpc::endpoint& where) {
    for (const auto& each : options_.instances)
      if (auto added = add(each); !added)
        return fail(added.error().code, "--instance: " + added.error().detail);
    set_front_routes();
    if (!options_.admin_socket.empty()) {
      set_admin_routes();
      const auto listening
        = parse_http_address("unix:" + options_.admin_socket).and_then([this](const auto& at) {
            return admin_->start(at);
          });
      if (!listening)
        return fail(listening.error().code, "--admin-socket: " + listening.error().detail);
    }
    auto chosen = front_.start(where);
    if (!chosen)
      return fail(chosen.error().code, "--listen: " + chosen.error().detail);
    address_ = to_string(*chosen);
    return {};
  }

  const std::string& address() const override { return address_; }

  bool drain(duration time) override {
    is_draining_ = true;
    return table_.wait_until_idle(time);
  }

private:
  // -- instances --------------------------------------------------------------

  result<void> add(const instance_options& wanted) {
    const auto alone = std::lock_guard{mutex_};
    const auto slot = HICACHE_TRY(table_.add(wanted));
    auto watch
      = instance_watch::start(wanted, slot, table_, {options_.probe_period, options_.connect_time});
    if (!watch) {
      static_cast<void>(table_.remove(wanted.address));
      return tl::unexpected{watch.error()};
    }
    watches_[slot] = std::move(*watch);
    return {};
  }

  result<void> remove(const std::string& address) {
    const auto alone = std::lock_guard{mutex_};
    return table_.remove(address).map([this](instance_slot slot) { watches_.erase(slot); });
  }

  // -- routes -----------------------------------------------------------------

  void set_front_routes() {
    front_.Post("/v1/completions", [this](const http_request& request, http_response& answer,
                                          const httplib::ContentReader& reader) {
      complete(request, answer, reader);
    });
    front_.Get("/v1/models", [this](const http_request&, http_response& answer) {
      const auto text = table_.models();
      if (!text.empty())
        answer.set_content(text, "application/json");
      else
        answer_error(answer, 503, "no instance takes requests now");
    });
    front_.Get("/health", [this](const http_request&, http_response& answer) {
      answer.status = table_.is_ready() && !is_draining_ ? 200 : 503;
    });
    front_.Get("/metrics", [this](const http_request&, http_response& answer) {
      answer.set_content(
        prometheus::TextSerializer{}.Serialize(to_metrics(table_.status(), proxy_.retries())),
        "text/plain; version=0.0.4; charset=utf-8");
    });
  }

  void complete(const http_request& request, http_response& answer,
                const httplib::ContentReader& reader) {
    auto body = std::string{};
    if (const auto status = receive(request, reader, body))
      return answer_error(answer, *status,
                          *status == 413 ? "the body is too long; expected 16 MiB at most"
                                         : "the body did not arrive; expected JSON");
    if (is_draining_)
      return answer_error(answer, 503, "the router is stopping");
    if (table_.running() >= options_.max_requests)
      return answer_error(answer, 429,
                          std::to_string(options_.max_requests)
                            + " completions are under way; try again when some have ended");
    proxy_.complete(request, std::move(body), http_listener::client(), answer);
  }

  void set_admin_routes() {
    auto& admin = admin_.emplace();
    admin.Get("/instances", [this](const http_request&, http_response& answer) {
      auto list = json::array();
      for (const auto& each : table_.status())
        list.push_back(to_json(each));
      answer.set_content(list.dump(2) + "\n", "application/json");
    });
    admin.Post("/instances", [this](const http_request& request, http_response& answer) {
      const auto wanted = parse_instance(request.body);
      tell(answer, wanted ? add(*wanted) : tl::unexpected{wanted.error()});
    });
    admin.Delete("/instances/([^/]+)", [this](const http_request& request, http_response& answer) {
      tell(answer, remove(request.matches[1]));
    });
    admin.Post("/instances/([^/]+)/(un)?drain",
               [this](const http_request& request, http_response& answer) {
                 tell(answer, table_.set_draining(request.matches[1], !request.matches[2].matched));
               });
  }

  static void tell(http_response& answer, const result<void>& done) {
    if (!done)
      return answer_error(answer, done.error().code == ec::unknown_id ? 404 : 400,
                          done.error().detail);
    answer.status = 204;
  }

  const router_options options_;
  std::string address_;
  std::atomic<bool> is_draining_ = false;
  instance_table table_;
  std::mutex mutex_; // One change of the instances at a time.
  std::map<instance_slot, std::unique_ptr<instance_watch>> watches_;
  completion_proxy proxy_;
  std::optional<http_listener> admin_;
  // Last member: its threads use the others.
  http_listener front_;
};

} // namespace

result<std::unique_ptr<router_server>> router_server::start(const router_options& options) {
  const auto where = rpc::parse_endpoint(options.listen);
  if (!where || where->is_path())
    return fail(ec::invalid_argument,
                "--listen: '" + options.listen + "' is no address; expected HOST:PORT");
  if (!options.insecure && !is_loopback(where->host))
    return fail(ec::invalid_argument, "--listen: other machines reach '" + where->host
                                        + "'; expected --insecure to let everyone there complete "
                                          "prompts, or a loopback address behind a proxy with TLS");
  if (options.instances.empty() && options.admin_socket.empty())
    return fail(ec::invalid_argument,
                "--instance is missing; expected one at least, or --admin-socket to add some");
  auto server = std::make_unique<server_impl>(options);
  HICACHE_TRY(server->listen(*where));
  return server;
}

} // namespace hicache
