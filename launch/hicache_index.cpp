// hicache-index: the cluster's index, one shard.

#include "actors/index.hpp"
#include "backends/index_link.hpp"
#include "launch/program.hpp"
#include "launch/rank_config.hpp"
#include "launch/stop_signal.hpp"
#include "messages/system_config.hpp"

#include <caf/actor_system.hpp>
#include <caf/io/middleman.hpp>
#include <caf/scoped_actor.hpp>
#include <spdlog/spdlog.h>

#include <cstdio>

namespace {

using namespace hicache;

struct index_flags {
  std::string listen = "127.0.0.1:7766";
  duration member_ttl = std::chrono::seconds{10};
  std::string log_level = "info";
};

/// An index tells people which port it has; members find nothing at an address such as "*".
bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

result<int> serve(const index_flags& flags, const stop_signal& stop) {
  start_logging(flags.log_level, 0, 1);
  const auto where = parse_endpoint(flags.listen);
  if (!where)
    return fail(ec::invalid_argument, "--listen: " + where.error().detail);
  if (flags.member_ttl < std::chrono::milliseconds{100})
    return fail(ec::invalid_argument, "--member-ttl: expected at least 100ms");
  if (!is_loopback(where->host))
    spdlog::warn("listening beyond this machine without encryption: everyone who reaches {} can "
                 "read and change "
                 "the index",
                 flags.listen);
  const auto clock = monotonic_clock{};
  auto config = system_config{};
  config.with_network();
  auto system = caf::actor_system{config};
  auto shard = system.spawn(hicache::index, index_options{flags.member_ttl, &clock});
  const auto port = system.middleman().publish(shard, where->port, where->host.c_str());
  auto self = caf::scoped_actor{system};
  const auto end = [&] {
    self->send_exit(shard, caf::exit_reason::user_shutdown);
    self->wait_for(shard);
  };
  if (!port) {
    end();
    return fail(ec::invalid_argument, "--listen: cannot listen on " + flags.listen
                                        + "; expected a free port of this machine");
  }
  std::printf("listening on %s:%u\n", where->host.c_str(), *port);
  std::fflush(stdout);
  while (!stop.wait_for(std::chrono::hours{1})) {
  }
  spdlog::info("stopping");
  system.middleman().unpublish(shard, *port);
  end();
  return exit_ok;
}

} // namespace

int main(int argc, char** argv) {
  const auto stop = stop_signal{};
  auto flags = index_flags{};
  auto app = CLI::App{"Serves the index of the cluster store: which member holds which page.",
                      "hicache-index"};
  app.add_option("--listen", flags.listen, "address to listen on; port 0 picks a free one")
    ->type_name("HOST:PORT")
    ->capture_default_str();
  add_duration_flag(app, "--member-ttl", flags.member_ttl,
                    "forget a member that is silent for longer");
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error or critical")
    ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "critical"}))
    ->capture_default_str();
  return run_program(app, argc, argv, [&] { return serve(flags, stop); });
}
