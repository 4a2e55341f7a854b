// hicache-rank: a rank by itself, with no engine: a member of the cluster store that lends its memory until a signal comes.

#include "launch/program.hpp"
#include "launch/rank_config.hpp"
#include "launch/rank_runtime.hpp"
#include "launch/rank_session.hpp"
#include "launch/stop_signal.hpp"

#include <spdlog/spdlog.h>

#include <cstdio>

namespace {

using namespace hicache;

result<int> serve(rank_config& config, rank_session& session, const stop_signal& stop) {
  start_logging(config.log_level, session.rank(), session.ranks());
  if (auto checked = config.finish(session.ranks()); !checked)
    return tl::unexpected{checked.error()};
  auto ranks = session.join();
  if (!ranks)
    return tl::unexpected{ranks.error()};
  auto runtime = rank_runtime::start(config, std::move(*ranks));
  if (!runtime) {
    if (runtime.error().code != ec::stopping) // Otherwise another rank says why.
      std::fprintf(stderr, "hicache-rank: %s\n", runtime.error().detail.c_str());
    session.abort_if_incomplete(runtime.error());
    return exit_usage;
  }
  if (session.rank() == 0) {
    std::printf("%u ranks ready; %s\n", session.ranks(), (*runtime)->description().c_str());
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
  auto app = CLI::App{"Runs one rank of hicache without an engine: it joins the cluster store and lends its memory.",
                      "hicache-rank"};
  add_rank_flags(app, config);
  return run_program(app, argc, argv, [&]() -> result<int> {
    auto session = rank_session::start(&argc, &argv);
    if (!session)
      return tl::unexpected{session.error()};
    return serve(config, *session, stop);
  });
}
