// hicache-rank: a rank by itself, with no engine: a member of the cluster store that lends its
// memory until a signal comes.

#include "launch/program.hpp"
#include "launch/rank_config.hpp"
#include "launch/rank_runtime.hpp"
#include "launch/rank_session.hpp"
#include "launch/stop_signal.hpp"

#include <spdlog/spdlog.h>

#include <cstdio>

namespace {

using namespace hicache;

result<int> serve(const rank_config& config, rank_session& session, const stop_signal& stop) {
  auto runtime = rank_runtime::start(config, std::move(session.peers));
  if (!runtime)
    return tl::unexpected{runtime.error()};
  if (session.rank == 0) {
    std::printf("%u ranks ready; %s\n", session.ranks, (*runtime)->description().c_str());
    std::fflush(stdout);
  }
  while (!stop.wait_for(std::chrono::hours{1})) {
  }
  spdlog::info("stopping");
  return exit_ok;
}

} // namespace

int main(int argc, char** argv) {
  const auto stop = stop_signal{};
  auto config = rank_config{};
  auto app = CLI::App{
    "Runs one rank of hicache without an engine: it joins the cluster store and lends its memory.",
    "hicache-rank"};
  add_rank_flags(app, config);
  const auto check = [&](const rank_session& session) {
    start_logging(config.log_level, session.rank, session.ranks);
    return config.finish(session.ranks);
  };
  return run_rank_program(app, argc, argv, check,
                          [&](rank_session& session) { return serve(config, session, stop); });
}
