#include "launch/rank_session.hpp"

#include "launch/program.hpp"
#include "transport/local_agreement.hpp"

#include <mpi.h>
#include <spdlog/spdlog.h>

namespace hicache {

result<rank_session> rank_session::start(int* argc, char*** argv) {
  auto session = rank_session{};
  if (!started_by_mpirun())
    return session;
  auto mpi = mpi_session::start(argc, argv);
  if (!mpi)
    return tl::unexpected{mpi.error()};
  session.mpi_ = std::move(*mpi);
  return session;
}

result<std::unique_ptr<agreement>> rank_session::join() {
  if (mpi_)
    return make_mpi_agreement(MPI_COMM_WORLD);
  return std::move(make_local_agreements(1).front());
}

void rank_session::abort_if_incomplete(const error& why) {
  if (!mpi_ || why.code != ec::rank_unresponsive)
    return;
  spdlog::shutdown();
  MPI_Abort(MPI_COMM_WORLD, exit_failed);
}

} // namespace hicache
