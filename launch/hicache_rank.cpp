// hicache-rank: a rank without an engine, which exports its memory to the cluster until a signal.

#include "base/limits.hpp"
#include "base/try.hpp"
#include "hicache/runtime.hpp"
#include "launch/program.hpp"
#include "launch/rank_session.hpp"
#include "launch/shutdown_watch.hpp"
#include "launch/stop_signal.hpp"
#include "runtime/rank_config.hpp"

#include <caf/scoped_actor.hpp>
#include <spdlog/spdlog.h>

#include <cstdio>

namespace {

using namespace hicache;

constexpr auto step_pause = duration{std::chrono::milliseconds{50}};

result<int> serve(const rank_config& config, rank_session& session, const stop_signal& stop) {
  auto watch = shutdown_watch{};
  auto runtime = HICACHE_TRY(rank_runtime::start(config, std::move(session.peers)));
  if (session.rank == 0) {
    std::printf("%u ranks ready; %s\n", session.ranks, runtime->description().c_str());
    std::fflush(stdout);
  }
  // L3 is attached and detached between steps, and without an engine this loop has to make them.
  auto self = caf::scoped_actor{runtime->system()};
  const auto pause = config.admin_listen.empty() ? duration{std::chrono::hours{1}} : step_pause;
  while (!stop.wait_for(pause))
    self->request(runtime->tree(), caf::infinite, atom::step_v, caf::timespan{0})
      .receive(
        [](const step_result&) {},
        [](const caf::error& err) { spdlog::warn("a step failed: {}", to_string(from_caf(err))); });
  spdlog::info("stopping");
  watch.arm(config.shutdown_grace + limits::shutdown_slack, exit_ok);
  return exit_ok;
}

} // namespace

int main(int argc, char** argv) {
  const auto stop = stop_signal{};
  auto config = rank_config{};
  auto app = CLI::App{"Runs one rank of hicache without an engine: it joins the cluster store and "
                      "exports its memory.",
                      "hicache-rank"};
  add_rank_flags(app, config);
  const auto check = [&](const rank_session& session) {
    start_logging(to_string(config.log_level), session.rank, session.ranks);
    return config.finish(session.ranks);
  };
  return run_rank_program(app, argc, argv, config, check,
                          [&](rank_session& session) { return serve(config, session, stop); });
}
