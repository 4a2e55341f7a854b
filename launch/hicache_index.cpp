// hicache-index: one or more shards of the cluster's index.

#include "actors/directory.hpp"
#include "actors/index.hpp"
#include "backends/cluster/index_addresses.hpp"
#include "backends/end_actor.hpp"
#include "base/about.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"
#include "hicache/system_config.hpp"
#include "launch/program.hpp"
#include "launch/program_settings.hpp"
#include "launch/stop_signal.hpp"
#include "rpc/limits.hpp"
#include "rpc/network.hpp"
#include "rpc/peer_identity.hpp"
#include "runtime/index_metrics.hpp"
#include "runtime/metrics_server.hpp"
#include "runtime/network_flags.hpp"

#include <caf/actor_system.hpp>
#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

namespace {

using namespace hicache;

/// Time to wait for the other processes' addresses at startup; enough for a dead server or two.
/// Addresses that arrive later are joined later.
constexpr auto join_patience = 2 * source_answer_time;

/// Checks that the flags are consistent and returns the address to listen on.
result<rpc::endpoint> check(const index_flags& flags) {
  auto where = HICACHE_TRY(about_input("--listen", rpc::parse_endpoint(flags.listen)));
  if (!flags.advertise.empty())
    HICACHE_TRY(about_input("--advertise", rpc::parse_endpoint(flags.advertise)));
  HICACHE_TRY(flags.tls.check());
  HICACHE_TRY(check_own_role(flags.tls, "serving an index"));
  HICACHE_TRY(check_listening("--listen", where.host, flags.tls, flags.insecure));
  if (flags.first_shard + flags.shards > limits::index_shards)
    return fail(ec::invalid_argument, "--shards: expected numbers of shards below "
                                        + std::to_string(limits::index_shards));
  return where;
}

/// Finds the other processes of the index and asks for their shards; null without --join.
result<std::shared_ptr<index_addresses>> join(const index_flags& flags) {
  if (flags.join.empty())
    return nullptr;
  auto opened = HICACHE_TRY(about_input("--join", index_addresses::open(flags.join, flags.tls)));
  opened->wait_for(join_patience);
  return opened;
}

result<int> serve(const index_flags& flags, const stop_signal& stop) {
  const auto where = HICACHE_TRY(check(flags));
  auto options = directory_options{};
  const auto joined = HICACHE_TRY(join(flags));
  if (const auto& others = joined)
    options.others = [others] { return others->now(); };
  const auto clock = monotonic_clock{};
  auto config = system_config{};
  config.with_threads(flags.shards);
  raise_descriptor_limit(); // One for each connection.
  auto system = caf::actor_system{config};
  auto network = rpc_network{system, flags.tls};
  auto metrics = std::unique_ptr<metrics_server>{};
  if (flags.metrics.port != 0)
    metrics = HICACHE_TRY(metrics_server::start(flags.metrics));
  for (auto i = uint32_t{0}; i < flags.shards; ++i)
    options.shards.emplace(flags.first_shard + i,
                           system.spawn(hicache::index, index_options{flags.member_ttl, &clock}));
  options.pause = flags.member_ttl / 4;
  options.connector = network.connector();
  const auto shards = options.shards;
  if (metrics)
    metrics->add(std::make_shared<index_metrics>(system, shards));
  const auto all = system.spawn(hicache::directory, std::move(options));
  const auto end = [&] {
    // First, so that other processes stop looking up this one.
    if (joined)
      joined->close();
    metrics.reset();
    network.stop_serving();
    end_actor(system, all);
    for (const auto& [number, shard] : shards)
      end_actor(system, shard);
  };
  auto socket = rpc_network::listen(where);
  if (!socket) {
    end();
    return fail(ec::invalid_argument, "--listen: " + socket.error().detail);
  }
  const auto listening = to_string(socket->where());
  const auto silence = std::chrono::duration_cast<std::chrono::seconds>(flags.member_ttl);
  network.serve(
    std::move(*socket), all,
    {flags.shards == 1, std::min<std::chrono::seconds>(silence, rpc::limits::peer_silence)});
  const auto advertised = flags.advertise.empty() ? listening : flags.advertise;
  caf::anon_send(all, atom::start_v, advertised);
  if (joined)
    joined->announce(advertised);
  std::printf("listening on %s\n", listening.c_str());
  std::fflush(stdout);
  while (!stop.wait_for(std::chrono::hours{1})) {
  }
  spdlog::info("stopping");
  end();
  return exit_ok;
}

} // namespace

int main(int argc, char** argv) {
  const auto stop = stop_signal{};
  auto flags = index_flags{};
  auto app = CLI::App{
    "Serves the index of the cluster store, or a part of it: which member holds which page.",
    "hicache-index"};
  for (const auto& each : index_settings())
    add_flag(app, each, flags);
  add_tls_flags(app, flags.tls);
  return run_program(app, argc, argv, [&] {
    start_logging(to_string(flags.log_level), 0, 1);
    return serve(flags, stop);
  });
}
