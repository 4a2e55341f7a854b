#include "runtime/rank_place.hpp"

#include "base/about.hpp"
#include "base/limits.hpp"
#include "base/numbers.hpp"
#include "base/try.hpp"
#include "rpc/endpoint.hpp"
#include "rpc/tls.hpp"
#include "runtime/network_flags.hpp"

#include <cstdlib>

namespace hicache {

namespace {

std::optional<uint32_t> number_in_environment(const char* name) {
  const auto* const found = std::getenv(name);
  return parse_number<uint32_t>(found != nullptr ? found : "");
}

} // namespace

result<socket_reducer_options> rank_place::options(const rank_config& config) const {
  const auto mine = rank ? rank : number_in_environment("RANK");
  const auto all = ranks ? ranks : number_in_environment("WORLD_SIZE");
  if (!mine || !all)
    return fail(ec::invalid_argument,
                "--rendezvous: which rank of how many this is cannot be told; expected --rank and "
                "--ranks, or RANK and WORLD_SIZE in the environment");
  if (*mine >= *all)
    return fail(ec::invalid_argument, "--rank: there is no rank " + std::to_string(*mine) + " of "
                                        + std::to_string(*all) + "; the first one is 0");
  const auto where = HICACHE_TRY(about_input("--rendezvous", rpc::parse_endpoint(rendezvous)));
  if (!where.is_path() && where.port == 0)
    return fail(ec::invalid_argument,
                "--rendezvous: all ranks need the same port, so it cannot be 0");
  auto chosen = socket_reducer_options{
    .rank = *mine,
    .size = *all,
    .host = where.host,
    .port = where.port,
    .job = job,
    .tls = nullptr,
    .timeout = limits::step_timeout,
    .machine = {},
  };
  if (where.is_path())
    return chosen;
  HICACHE_TRY(config.tls.check());
  HICACHE_TRY(check_listening("--rendezvous", where.host, config.tls, config.insecure));
  if (config.tls.given())
    chosen.tls = HICACHE_TRY(load_tls(config.tls, tls_peers::ranks));
  return chosen;
}

void add_place_flags(CLI::App& app, rank_place& place) {
  auto* meets
    = app
        .add_option("--rendezvous", place.rendezvous,
                    "where the ranks of an instance find each other without mpirun; rank 0 waits "
                    "there until all have come")
        ->type_name("HOST:PORT|unix:PATH");
  app
    .add_option("--rank", place.rank,
                "with --rendezvous: which rank this is, from 0; RANK of the environment if absent")
    ->needs(meets);
  app
    .add_option("--ranks", place.ranks,
                "with --rendezvous: how many there are; WORLD_SIZE of the environment if absent")
    ->needs(meets);
  app
    .add_option("--job", place.job,
                "with --rendezvous: a name of the instance; ranks of others are refused")
    ->type_name("NAME")
    ->needs(meets);
}

} // namespace hicache
