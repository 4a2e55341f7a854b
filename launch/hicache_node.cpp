// hicache-node: the share of the cache on this host, for short-lived processes.

#include "base/numbers.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "hicache/system_config.hpp"
#include "launch/program.hpp"
#include "launch/program_settings.hpp"
#include "launch/service_manager.hpp"
#include "launch/stop_signal.hpp"
#include "runtime/metrics_server.hpp"
#include "runtime/network_flags.hpp"
#include "runtime/node_metrics.hpp"

#include <caf/actor_system.hpp>
#include <spdlog/spdlog.h>

#include <grp.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

namespace {

using namespace hicache;

/// Selects the node's socket: --socket, or the one opened by the service manager.
result<void> choose_socket(const node_flags& flags, const service_manager& manager,
                           node_host_options& options) {
  options.opened = HICACHE_TRY(manager.take_listener());
  options.socket = options.opened ? options.opened->where().path() : flags.host.socket;
  if (options.opened && !flags.host.socket.empty())
    return fail(ec::invalid_argument, "--socket: the service manager has opened " + options.socket
                                        + " for this node; leave the flag out");
  if (options.socket.empty())
    return fail(ec::invalid_argument, "--socket: expected a path for clients to connect to");
  return {};
}

/// Selects the TCP address for clients on other machines, if enabled.
result<void> choose_port(const node_flags& flags, node_host_options& options) {
  if (flags.listen.empty())
    return {};
  const auto where = rpc::parse_endpoint(flags.listen);
  if (!where || where->is_path())
    return fail(ec::invalid_argument,
                "--listen: '" + flags.listen + "' is not an address such as 10.0.0.2:7767");
  options.listen = *where;
  return check_listening("--listen", where->host, flags.host.tls, flags.insecure);
}

/// Looks up a group id by number or name.
result<gid_t> find_group(const std::string& name) {
  errno = 0;
  if (const auto* found = ::getgrnam(name.c_str()))
    return found->gr_gid;
  if (const auto number = parse_number<gid_t>(name))
    return *number;
  return fail(ec::invalid_argument,
              "--group: there is no group '" + name + "'; expected a group's name or number");
}

/// Runs until a signal arrives. Sends watchdog notifications while the node responds.
void run(const node_host& host, const service_manager& manager, const stop_signal& stop) {
  const auto patience = manager.patience().value_or(std::chrono::hours{24});
  while (!stop.wait_for(patience / 3)) {
    if (host.answers(patience / 3))
      manager.alive();
    else
      spdlog::error("the node does not answer; the service manager is not told that it lives");
  }
}

result<int> serve(const node_flags& flags, const stop_signal& stop) {
  start_logging(to_string(flags.log_level), 0, 1);
  const auto manager = service_manager{};
  auto options = flags.host;
  HICACHE_TRY(choose_socket(flags, manager, options));
  if (!flags.group.empty())
    options.group = HICACHE_TRY(find_group(flags.group));
  HICACHE_TRY(flags.host.tls.check());
  if (!flags.host.index.empty())
    HICACHE_TRY(
      check_listening("--listen-host", flags.host.listen_host, flags.host.tls, flags.insecure));
  HICACHE_TRY(choose_port(flags, options));
  raise_descriptor_limit(); // Two for each client.
  const auto clock = monotonic_clock{};
  auto config = system_config{};
  auto system = caf::actor_system{config};
  auto metrics = std::unique_ptr<metrics_server>{};
  if (flags.metrics.port != 0)
    metrics = HICACHE_TRY(metrics_server::start(flags.metrics));
  const auto where = options.socket;
  options.clock = &clock;
  auto host = HICACHE_TRY(node_host::start(system, std::move(options)));
  if (metrics)
    metrics->add(std::make_shared<node_metrics>(system, host->actor(), host->below()));
  std::printf("listening on unix:%s\n", where.c_str());
  if (const auto& port = host->listening())
    std::printf("listening on %s\n", to_string(*port).c_str());
  std::fflush(stdout);
  manager.ready("exports " + format_bytes(flags.host.memory_bytes) + " at " + where);
  run(*host, manager, stop);
  spdlog::info("stopping");
  manager.stopping();
  metrics.reset();
  host.reset();
  return exit_ok;
}

} // namespace

int main(int argc, char** argv) {
  const auto stop = stop_signal{};
  auto flags = node_flags{};
  auto app
    = CLI::App{"Keeps pages in this host's memory for processes that come and go, such as engines.",
               "hicache-node"};
  for (const auto& each : node_settings())
    add_flag(app, each, flags);
  app.get_option("--memory")->required();
  add_tls_flags(app, flags.host.tls);
  return run_program(app, argc, argv, [&] { return serve(flags, stop); });
}
