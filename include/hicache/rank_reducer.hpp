#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

struct ssl_ctx_st;

namespace hicache {

/// Rank reduction: element-wise minima over all ranks of an instance. The k-th reduction of a
/// channel is the same one on every rank, so the ranks need no other coordination.
///
/// One thread at a time may call an object; its callbacks run only inside its functions, on that
/// thread.
class rank_reducer {
public:
  /// Receives the minima, in the order of the values offered, or the error that prevented them.
  using callback = std::function<void(result<std::vector<int64_t>>)>;

  /// Signals that `progress` has work; see on_notify.
  using notify_callback = std::function<void()>;

  rank_reducer() = default;

  rank_reducer(const rank_reducer&) = delete;

  rank_reducer& operator=(const rank_reducer&) = delete;

  /// Does not wait for the other ranks. Outstanding reductions of this rank end with `stopping`.
  virtual ~rank_reducer();

  /// This rank, from 0.
  virtual uint32_t rank() const noexcept = 0;

  /// Number of ranks.
  virtual uint32_t size() const noexcept = 0;

  /// Starts the element-wise minimum of `values` over all ranks. All ranks pass vectors of equal
  /// length.
  /// @pre no reduction of this channel is outstanding on this rank
  /// @param done Called exactly once, by this function, by `progress` or by the destructor. It may
  /// start the channel's next reduction.
  virtual void reduce_min(reduction_channel channel, std::vector<int64_t> values, callback done)
    = 0;

  /// Advances outstanding reductions and calls the callbacks of finished ones. Never blocks.
  /// @returns true if an outstanding reduction of this rank needs calls without a notification
  virtual bool progress() = 0;

  /// From now on calls `news` when another rank in this process has ended a reduction of this rank,
  /// so that `progress` will find it. Called on any thread, also while this object is being called;
  /// `news` must not call this object.
  virtual void on_notify(notify_callback news) = 0;

  /// Human-readable list of the ranks known to be missing from the outstanding reduction of a
  /// channel: "rank 2 (process 1234) is stopped; rank 3 (process 1235) is gone".
  virtual std::string missing(reduction_channel channel) = 0;
};

// -- one process --------------------------------------------------------------

/// Joins `ranks` ranks inside this process; element r is rank r. With one rank, it serves programs
/// not started by mpirun.
///
/// A reduction ends inside the reduce_min call of the last rank to enter, which calls that rank's
/// callback; the other ranks are notified, and their callbacks run inside their next call of
/// `progress`. `missing` is exact. Different elements may be called from different threads. Vectors
/// of unequal length give every rank `configuration_mismatch`. Once an element is destroyed, all
/// outstanding and later reductions of the others fail with `rank_unresponsive`.
/// @pre ranks > 0
std::vector<std::unique_ptr<rank_reducer>> make_local_reducers(uint32_t ranks);

// -- ranks started by mpirun --------------------------------------------------

/// Initialises MPI with MPI_THREAD_MULTIPLE (the engine may use MPI too) and finalises it on
/// destruction. If MPI is already initialised, it does neither. Move-only. Create and destroy it on
/// the main thread; it must outlive every reducer.
///
/// Finalising waits for the other ranks. If peers are gone, call MPI_Abort instead.
class mpi_session {
public:
  /// @param argc, argv The arguments of main, or null. MPI may remove its own arguments.
  /// @returns unsupported, with the provided and required thread level, if MPI's is too low
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

/// Reducer of the ranks of a communicator, over one duplicate of it per channel. Collective: all
/// ranks call it.
///
/// All MPI calls of a reducer come from the thread that calls the reducer. Callbacks run inside
/// `progress`. A reduction that fails in MPI ends with `rank_unresponsive`, as does every later one
/// of its channel. MPI does not reliably detect vectors of unequal length: passing them is a
/// programming error. The destructor never waits: it abandons the buffers and communicator of an
/// outstanding reduction to MPI, because with a dead peer the reduction would never finish. MPI
/// does not tell which ranks have entered a reduction, so `missing` names the ranks on this machine
/// whose processes are stopped or gone.
/// @param communicator As returned by MPI_Comm_c2f, so that this header needs no MPI.
/// @returns unsupported if MPI is not initialised with MPI_THREAD_MULTIPLE, io_failure if it cannot
/// duplicate the communicator
result<std::unique_ptr<rank_reducer>> make_mpi_reducer(int communicator);

// -- ranks started otherwise ---------------------------------------------------

/// Options of a rank that was not started by mpirun.
struct socket_reducer_options {
  /// From 0, unique.
  uint32_t rank = 0;
  /// Ranks of the instance; equal on all.
  uint32_t size = 1;
  /// Where rank 0 listens until all ranks have joined: host name or IP address with a port, or
  /// unix:PATH if all ranks run on one machine.
  std::string host;
  uint16_t port = 0;
  /// Equal on all ranks of the instance; up to 63 bytes. Ranks of other jobs are rejected.
  std::string job;
  /// TLS context, with which each side verifies the other's certificate. Null: unencrypted.
  std::shared_ptr<ssl_ctx_st> tls;
  /// How long to wait for the others.
  std::chrono::nanoseconds timeout{};
  /// Name of the host on which ranks share memory; this machine if empty. Up to 95 bytes.
  std::string machine;
};

/// Reducer that needs no MPI. Collective: blocks until all ranks have joined.
///
/// Ranks of one host share memory: a reduction among them takes no system call. Each rank has a
/// connection to rank 0, which reports the loss of a rank at once and carries reductions between
/// hosts: the last rank of a host to enter sends the host's minima to rank 0, which sends the
/// overall minima to every rank. A dedicated thread serves these connections.
///
/// Callbacks run inside `progress`, which must be called while it returns true. Once a rank is gone
/// or its reducer destroyed, reductions that it has not entered, and all later ones, end on all
/// other ranks with `rank_unresponsive` and a sentence that names it. Vectors of unequal length
/// give every rank `configuration_mismatch`; vectors longer than rank_limits::values give
/// `limit_reached`. `missing` is exact for ranks of its own host; for other hosts, rank 0 knows
/// which hosts lack a rank.
/// @returns invalid_argument with a sentence for options that are invalid or rejected by rank 0
/// (another size or job, a rank that has already joined); rank_unresponsive with a sentence that
/// names the ranks that have not joined; io_failure if the system lacks memory or sockets
result<std::unique_ptr<rank_reducer>> make_socket_reducer(const socket_reducer_options& options);

} // namespace hicache
