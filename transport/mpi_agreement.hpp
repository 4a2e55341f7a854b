#pragma once

#include "base/error.hpp"
#include "transport/agreement.hpp"

#include <mpi.h>

#include <cstdint>
#include <memory>

namespace hicache {

/// MPI for as long as this object lives: initialises it with MPI_THREAD_MULTIPLE (the engine may
/// use MPI too) and finalises it. Where MPI is initialised already, it leaves both to whoever did.
/// Move-only. Create and destroy it on the main thread, outside of the life of every agreement.
///
/// Finalising waits for the other ranks. A program whose peers are gone should leave by MPI_Abort
/// instead.
class mpi_session {
public:
  /// @param argc, argv The arguments of main, or null. MPI may remove its own.
  /// @returns unsupported, with what MPI provides and what is needed, if it lacks the thread
  /// support
  static result<mpi_session> start(int* argc, char*** argv);

  mpi_session(mpi_session&& other) noexcept;

  mpi_session& operator=(mpi_session&& other) noexcept;

  ~mpi_session();

  /// This process in MPI_COMM_WORLD.
  uint32_t rank() const noexcept { return rank_; }

  /// Processes in MPI_COMM_WORLD.
  uint32_t size() const noexcept { return size_; }

private:
  explicit mpi_session(bool owner);

  void finalise() noexcept;

  bool owner_ = false;
  uint32_t rank_ = 0;
  uint32_t size_ = 1;
};

/// The agreement of the ranks of `communicator`, over duplicates of it, one per channel.
/// Collective: all ranks call it.
///
/// All MPI calls of one agreement come from the thread that calls the agreement. Callbacks run
/// inside `progress`. A reduction that MPI fails ends with `rank_unresponsive`, and so does every
/// later one of that channel. MPI does not detect vectors of unequal length reliably: they are a
/// programmer's error. The destructor never waits: what a reduction that is still outstanding uses
/// (buffers, communicator) is abandoned to MPI, since a peer that died would never let it finish.
/// MPI does not tell who has entered a reduction, so `missing` names the ranks on this machine
/// whose processes are stopped or gone.
/// @returns unsupported if MPI is not initialised with MPI_THREAD_MULTIPLE, io_failure if it cannot
/// duplicate
result<std::unique_ptr<agreement>> make_mpi_agreement(MPI_Comm communicator);

} // namespace hicache
