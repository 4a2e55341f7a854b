#include "launch/rank_session.hpp"

#include "base/try.hpp"
#include "launch/program.hpp"
#include "runtime/rank_agreement.hpp"
#include "runtime/rank_place.hpp"
#include "runtime/stray_listeners.hpp"

#include <mpi.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <optional>

namespace hicache {

namespace {

/// Ends the whole instance: a rank is gone, and finalising MPI would wait for it.
[[noreturn]] void abort_instance() {
  spdlog::shutdown();
  MPI_Abort(MPI_COMM_WORLD, exit_failed);
  std::abort();
}

/// This process with its session.
struct joined_instance {
  /// Only under mpirun. Outlives the session's reducer.
  std::optional<mpi_session> mpi;
  rank_session session;
};

result<joined_instance> join_by_mpi(int& argc, char**& argv) {
  auto started = mpi_session::start(&argc, &argv);
  if (!started && !speaks_for_instance())
    return fail(ec::stopping);
  auto mpi = HICACHE_TRY(std::move(started));
  auto peers = HICACHE_TRY(make_mpi_reducer(MPI_Comm_c2f(MPI_COMM_WORLD)));
  warn_of_stray_listeners({}, "127.0.0.1",
                          "Open MPI; OMPI_MCA_btl_tcp_if_include names the interfaces that it may "
                          "use");
  auto session = rank_session{mpi.rank(), mpi.size(), std::move(peers)};
  return joined_instance{std::move(mpi), std::move(session)};
}

result<joined_instance> join(int& argc, char**& argv, const rank_place& place,
                             const rank_config& config) {
  if (place.rendezvous.empty() && started_by_mpirun())
    return join_by_mpi(argc, argv);
  if (place.rendezvous.empty())
    return joined_instance{std::nullopt, {0, 1, std::move(make_local_reducers(1).front())}};
  const auto options = HICACHE_TRY(place.options(config));
  start_logging(to_string(config.log_level), options.rank, options.size);
  auto peers = HICACHE_TRY(make_socket_reducer(options));
  return joined_instance{std::nullopt, {options.rank, options.size, std::move(peers)}};
}

/// Joins the instance, lets all ranks check their input, then runs the body.
result<int> run_rank(int& argc, char**& argv, const rank_place& place, const rank_config& config,
                     const std::function<result<void>(const rank_session&)>& check,
                     const std::function<result<int>(rank_session&)>& body) {
  auto joined = HICACHE_TRY(join(argc, argv, place, config));
  auto& session = joined.session;
  HICACHE_TRY(agree_on_outcome(*session.peers, check(session)));
  auto code = body(session);
  if (!code && code.error().code == ec::rank_unresponsive && session.ranks > 1) {
    spdlog::error("{}", to_string(code.error()));
    if (joined.mpi)
      abort_instance();
    return exit_failed; // The other ranks notice the closed connections.
  }
  return code;
}

} // namespace

int run_rank_program(CLI::App& app, int argc, char** argv, const rank_config& config,
                     const std::function<result<void>(const rank_session&)>& check,
                     const std::function<result<int>(rank_session&)>& body) {
  auto place = rank_place{};
  add_place_flags(app, place);
  // Only the rank that reports may return an error, which run_program prints.
  const auto quietly = [](result<int> code) {
    return !code && code.error().code == ec::stopping ? result<int>{exit_usage} : code;
  };
  const auto on_bad_flags = [&](const error& bad) {
    // The rank number may not have been parsed.
    if (!started_by_mpirun()) {
      complain(app, bad);
      return exit_usage;
    }
    const auto refuse = [&](const rank_session&) -> result<void> { return tl::unexpected{bad}; };
    if (auto code = run_rank(argc, argv, {}, config, refuse, body);
        !code && code.error().code != ec::stopping)
      complain(app, code.error());
    return exit_usage;
  };
  return run_program(
    app, argc, argv, [&] { return quietly(run_rank(argc, argv, place, config, check, body)); },
    on_bad_flags);
}

} // namespace hicache
