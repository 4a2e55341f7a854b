#pragma once

#include "base/error.hpp"
#include "transport/agreement.hpp"
#include "transport/mpi_agreement.hpp"

#include <memory>
#include <optional>

namespace hicache {

/// How a program takes part in its instance: as a rank under mpirun, or alone, without MPI, when it was started by itself.
class rank_session {
public:
  /// @returns unsupported with a sentence if MPI cannot serve several threads.
  static result<rank_session> start(int* argc, char*** argv);

  uint32_t rank() const noexcept { return mpi_ ? mpi_->rank() : 0; }

  uint32_t ranks() const noexcept { return mpi_ ? mpi_->size() : 1; }

  /// How this rank agrees with the others. Collective.
  result<std::unique_ptr<agreement>> join();

  /// Ends the whole instance now: for when a rank is gone, since finalising MPI would wait for it. Does nothing without MPI.
  void abort_if_incomplete(const error& why);

private:
  std::optional<mpi_session> mpi_;
};

} // namespace hicache
