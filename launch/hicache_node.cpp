// hicache-node: the share of the cache on this host, for short-lived processes.

#include "base/units.hpp"
#include "hicache/system_config.hpp"
#include "launch/program.hpp"
#include "launch/service_manager.hpp"
#include "launch/stop_signal.hpp"
#include "runtime/metrics_server.hpp"
#include "runtime/network_flags.hpp"
#include "runtime/node_host.hpp"
#include "runtime/node_metrics.hpp"
#include "runtime/rank_config.hpp"
#include "runtime/setting.hpp"

#include <caf/actor_system.hpp>
#include <spdlog/spdlog.h>

#include <grp.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

namespace {

using namespace hicache;

struct node_flags {
  uint64_t memory_bytes = 0;
  std::string memory_file;
  std::string disk;
  uint64_t disk_bytes = 0;
  std::string socket;
  std::string group;
  std::string index;
  std::string listen;
  std::string listen_host = "127.0.0.1";
  std::string log_level = "info";
  tls_files tls;
  bool insecure = false;
  metrics_options metrics;
};

/// Selects the node's socket: --socket, or the one opened by the service manager.
result<void> choose_socket(const node_flags& flags, const service_manager& manager,
                           node_host_options& options) {
  auto opened = manager.take_listener();
  if (!opened)
    return tl::unexpected{opened.error()};
  options.opened = std::move(*opened);
  options.socket = options.opened ? options.opened->where().path() : flags.socket;
  if (options.opened && !flags.socket.empty())
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
  return check_listening("--listen", where->host, flags.tls, flags.insecure);
}

/// Looks up a group id by number or name.
result<gid_t> find_group(const std::string& name) {
  errno = 0;
  if (const auto* found = ::getgrnam(name.c_str()))
    return found->gr_gid;
  auto number = gid_t{};
  const auto* const end = name.data() + name.size();
  if (const auto read = std::from_chars(name.data(), end, number);
      read.ec == std::errc{} && read.ptr == end)
    return number;
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
  start_logging(flags.log_level, 0, 1);
  const auto manager = service_manager{};
  auto options = node_host_options{};
  if (const auto chosen = choose_socket(flags, manager, options); !chosen)
    return tl::unexpected{chosen.error()};
  if (!flags.group.empty()) {
    const auto group = find_group(flags.group);
    if (!group)
      return tl::unexpected{group.error()};
    options.group = *group;
  }
  if (const auto checked = flags.tls.check(); !checked)
    return tl::unexpected{checked.error()};
  if (!flags.index.empty())
    if (const auto allowed
        = check_listening("--listen-host", flags.listen_host, flags.tls, flags.insecure);
        !allowed)
      return tl::unexpected{allowed.error()};
  if (const auto chosen = choose_port(flags, options); !chosen)
    return tl::unexpected{chosen.error()};
  raise_descriptor_limit(); // Two for each client.
  const auto clock = monotonic_clock{};
  auto config = system_config{};
  auto system = caf::actor_system{config};
  auto metrics = std::unique_ptr<metrics_server>{};
  if (flags.metrics.port != 0) {
    auto started = metrics_server::start(flags.metrics);
    if (!started)
      return tl::unexpected{started.error()};
    metrics = std::move(*started);
  }
  const auto where = options.socket;
  options.memory_bytes = flags.memory_bytes;
  options.memory_file = flags.memory_file;
  options.disk = flags.disk;
  options.disk_bytes = flags.disk_bytes;
  options.index = flags.index;
  options.listen_host = flags.listen_host;
  options.tls = flags.tls;
  options.clock = &clock;
  auto host = node_host::start(system, std::move(options));
  if (!host)
    return tl::unexpected{host.error()};
  if (metrics)
    metrics->add(std::make_shared<node_metrics>(system, (*host)->actor()));
  std::printf("listening on unix:%s\n", where.c_str());
  if (const auto& port = (*host)->listening())
    std::printf("listening on %s\n", to_string(*port).c_str());
  std::fflush(stdout);
  manager.ready("exports " + format_bytes(flags.memory_bytes) + " at " + where);
  run(**host, manager, stop);
  spdlog::info("stopping");
  manager.stopping();
  metrics.reset();
  host->reset();
  return exit_ok;
}

} // namespace

int main(int argc, char** argv) {
  const auto stop = stop_signal{};
  auto flags = node_flags{};
  auto app
    = CLI::App{"Keeps pages in this host's memory for processes that come and go, such as engines.",
               "hicache-node"};
  add_bytes_flag(app, "--memory", flags.memory_bytes,
                 "memory for pages, such as 64GiB; taken at the start");
  app.get_option("--memory")->required();
  app
    .add_option("--memory-file", flags.memory_file,
                "file that is this memory, of --memory bytes, on hugetlbfs, tmpfs or another file "
                "system; the next node with the same file offers its pages again. Without, pages "
                "end with the node")
    ->type_name("PATH");
  app
    .add_option("--disk", flags.disk,
                "folder below the memory: what clients store is written there, too, and read from "
                "there when memory has it no more, after a restart for instance")
    ->type_name("PATH");
  add_bytes_flag(app, "--disk-bytes", flags.disk_bytes,
                 "bound on the folder, such as 500GiB; what was used longest ago goes first");
  app
    .add_option("--socket", flags.socket,
                "where clients connect: a path; not where a service manager opens the socket")
    ->type_name("PATH");
  app
    .add_option("--group", flags.group,
                "group whose processes are clients too, and so may write to the memory; without, "
                "only those of this user")
    ->type_name("NAME|NUMBER");
  app
    .add_option("--listen", flags.listen,
                "where clients on other machines connect, with certificates of the cluster; "
                "without, nowhere")
    ->type_name("HOST:PORT");
  app
    .add_option("--index", flags.index,
                "the index of the cluster store; without, this host's pages stay on this host")
    ->type_name(index_place_type);
  app
    .add_option("--listen-host", flags.listen_host,
                "with --index, address where members on other machines read pages")
    ->type_name("HOST")
    ->capture_default_str();
  add_metrics_flags(app, flags.metrics, "port at which Prometheus finds /metrics; 0 is nowhere");
  add_tls_flags(app, flags.tls);
  app.add_flag(
    "--insecure", flags.insecure,
    "listen beyond this machine without TLS: any client that reaches the port can read and "
    "change what is cached");
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error or critical")
    ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "critical"}))
    ->capture_default_str();
  return run_program(app, argc, argv, [&] { return serve(flags, stop); });
}
