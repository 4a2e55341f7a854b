#include "launch/rank_session.hpp"

#include "launch/program.hpp"
#include "launch/rank_agreement.hpp"
#include "launch/stray_listeners.hpp"
#include "transport/local_agreement.hpp"
#include "transport/mpi_agreement.hpp"

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

/// Joins the instance, lets all ranks check their input, then runs the body.
result<int> run_rank(int& argc, char**& argv,
                     const std::function<result<void>(const rank_session&)>& check,
                     const std::function<result<int>(rank_session&)>& body) {
  auto mpi = std::optional<mpi_session>{};
  auto session = rank_session{};
  if (started_by_mpirun()) {
    auto started = mpi_session::start(&argc, &argv);
    if (!started) {
      if (speaks_for_instance())
        return tl::unexpected{started.error()};
      return fail(ec::stopping);
    }
    mpi = std::move(*started);
    session.rank = mpi->rank();
    session.ranks = mpi->size();
    auto joined = make_mpi_agreement(MPI_COMM_WORLD);
    if (!joined)
      return tl::unexpected{joined.error()};
    session.peers = std::move(*joined);
    warn_of_stray_listeners(
      {}, "127.0.0.1",
      "Open MPI; OMPI_MCA_btl_tcp_if_include names the interfaces that it may "
      "use");
  } else {
    session.peers = std::move(make_local_agreements(1).front());
  }
  if (auto checked = agree_on_outcome(*session.peers, check(session)); !checked)
    return tl::unexpected{checked.error()};
  auto code = body(session);
  if (!code && code.error().code == ec::rank_unresponsive && mpi) {
    spdlog::error("{}", to_string(code.error()));
    abort_instance();
  }
  return code;
}

} // namespace

int run_rank_program(CLI::App& app, int argc, char** argv,
                     const std::function<result<void>(const rank_session&)>& check,
                     const std::function<result<int>(rank_session&)>& body) {
  // Only the rank that is to speak may return an error that run_program prints.
  const auto quietly = [](result<int> code) {
    return !code && code.error().code == ec::stopping ? result<int>{exit_usage} : code;
  };
  const auto on_bad_flags = [&](const error& bad) {
    const auto refuse = [&](const rank_session&) -> result<void> { return tl::unexpected{bad}; };
    if (auto code = run_rank(argc, argv, refuse, body); !code && code.error().code != ec::stopping)
      complain(app, code.error());
    return exit_usage;
  };
  return run_program(
    app, argc, argv, [&] { return quietly(run_rank(argc, argv, check, body)); }, on_bad_flags);
}

} // namespace hicache
