// hicache-router: OpenAI's completions API in front of several instances.

#include "base/try.hpp"
#include "launch/program.hpp"
#include "launch/router/router_server.hpp"
#include "launch/router/router_settings.hpp"
#include "launch/shutdown_watch.hpp"
#include "launch/stop_signal.hpp"
#include "runtime/setting_flags.hpp"

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace hicache;

/// For connections to end when completions have.
constexpr auto farewell = std::chrono::seconds{5};

result<int> serve(router_options options, const std::vector<std::string>& instances,
                  const stop_signal& stop) {
  for (const auto& text : instances) {
    auto wanted = parse_instance(text);
    if (!wanted)
      return fail(ec::invalid_argument, "--instance: " + wanted.error().detail);
    options.instances.push_back(std::move(*wanted));
  }
  raise_descriptor_limit(); // Two for each request.
  auto watch = shutdown_watch{};
  const auto server = HICACHE_TRY(router_server::start(options));
  std::printf("listening on %s\n", server->address().c_str());
  std::fflush(stdout);
  while (!stop.wait_for(std::chrono::hours{1}))
    continue;
  spdlog::info("stopping");
  if (!server->drain(options.shutdown_grace))
    spdlog::warn("completions under way are cut off");
  watch.arm(farewell, exit_ok);
  return exit_ok;
}

} // namespace

int main(int argc, char** argv) {
  const auto stop = stop_signal{};
  auto options = router_options{};
  auto instances = std::vector<std::string>{};
  auto app
    = CLI::App{"Sends completions to the instance that has most of the prompt cached, and has "
               "time.",
               "hicache-router"};
  app
    .add_option("--instance", instances,
                "an instance's API, where it publishes what it caches (its --kv-events), where it "
                "is asked for missed events, and its role, if it is not to be asked for it; may be "
                "given several times")
    ->type_name("HOST:PORT[,events=ENDPOINT][,replay=ENDPOINT][,role=both|prefill|decode]");
  for (const auto& each : router_settings())
    add_flag(app, each, options);
  return run_program(app, argc, argv, [&] {
    start_logging(to_string(options.log_level), 0, 1);
    return serve(options, instances, stop);
  });
}
