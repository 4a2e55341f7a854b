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

/// How the ranks of an instance agree: element-wise minima over all ranks. The k-th reduction of a
/// channel is the same one on every rank, so the ranks need no other coordination.
///
/// One thread at a time may call a given object. Its callbacks run inside its functions only, on
/// the caller's thread.
class rank_reducer {
public:
  /// Receives the minima, in the order of the values offered, or the error that prevented them.
  using callback = std::function<void(result<std::vector<int64_t>>)>;

  /// Says that `progress` has something to do; see on_notify.
  using notify_callback = std::function<void()>;

  rank_reducer() = default;

  rank_reducer(const rank_reducer&) = delete;

  rank_reducer& operator=(const rank_reducer&) = delete;

  /// Does not wait for the other ranks. Reductions that are still outstanding here are answered
  /// with `stopping`.
  virtual ~rank_reducer();

  /// This rank, from 0.
  virtual uint32_t rank() const noexcept = 0;

  /// Number of ranks.
  virtual uint32_t size() const noexcept = 0;

  /// Begins the element-wise minimum of `values` over all ranks. All ranks pass vectors of equal
  /// length.
  /// @pre no reduction of this channel is outstanding on this rank
  /// @param done Called exactly once, by this function, by `progress` or by the destructor. It may
  /// begin the channel's next reduction.
  virtual void reduce_min(reduction_channel channel, std::vector<int64_t> values, callback done)
    = 0;

  /// Moves the outstanding reductions forward and calls the callbacks of finished ones. Never
  /// blocks.
  /// @returns true if it has to be called again, although there was no news, for a reduction that
  /// is outstanding on this rank to end
  virtual bool progress() = 0;

  /// From now on calls `news` when another rank in this process ended a reduction of this one,
  /// which `progress` will find. On any thread, also while this object is being called; `news` must
  /// not call it.
  virtual void on_notify(notify_callback news) = 0;

  /// Which ranks have not entered the outstanding reduction of a channel, as far as this rank can
  /// tell, for people: "rank 2 (process 1234) is stopped; rank 3 (process 1235) is gone".
  virtual std::string missing(reduction_channel channel) = 0;
};

// -- one process --------------------------------------------------------------

/// Joins `ranks` ranks inside this process; element r is rank r. With one rank it is the agreement
/// of a program that was not started by mpirun.
///
/// A reduction ends inside the reduce_min call of the last rank to enter, which calls the callback
/// of that rank; the others get news, and their callbacks run inside their next call of `progress`.
/// Which ranks are missing is known exactly. Different elements may be called from different
/// threads. Vectors of unequal length give every rank `configuration_mismatch`. Once an element is
/// destroyed no reduction can end: the outstanding ones of the others, and all that they begin
/// later, fail with `rank_unresponsive`.
/// @pre ranks > 0
std::vector<std::unique_ptr<rank_reducer>> make_local_reducers(uint32_t ranks);

// -- ranks started by mpirun --------------------------------------------------

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

/// The agreement of the ranks of a communicator, over duplicates of it, one per channel.
/// Collective: all ranks call it.
///
/// All MPI calls of one agreement come from the thread that calls the agreement. Callbacks run
/// inside `progress`. A reduction that MPI fails ends with `rank_unresponsive`, and so does every
/// later one of that channel. MPI does not detect vectors of unequal length reliably: they are a
/// programmer's error. The destructor never waits: what a reduction that is still outstanding uses
/// (buffers, communicator) is abandoned to MPI, since a peer that died would never let it finish.
/// MPI does not tell who has entered a reduction, so `missing` names the ranks on this machine
/// whose processes are stopped or gone.
/// @param communicator What MPI_Comm_c2f returns for it, so that this header needs no MPI.
/// @returns unsupported if MPI is not initialised with MPI_THREAD_MULTIPLE, io_failure if it cannot
/// duplicate the communicator
result<std::unique_ptr<rank_reducer>> make_mpi_reducer(int communicator);

// -- ranks started by something else ------------------------------------------

/// A rank that something else than mpirun started, and where it finds the others.
struct socket_reducer_options {
  /// From 0, each of them once.
  uint32_t rank = 0;
  /// Ranks of the instance, equal on all.
  uint32_t size = 1;
  /// Where rank 0 waits for the others, for as long as not all are there: a name or number of its
  /// machine, with a port; or unix:PATH, if all ranks run on one.
  std::string host;
  uint16_t port = 0;
  /// Equal on all ranks of the instance; up to 63 bytes. Ranks of another job are refused.
  std::string job;
  /// Each side shows its certificate and checks the other's, as the context says. Null: in clear.
  std::shared_ptr<ssl_ctx_st> tls;
  /// How long to wait for the others.
  std::chrono::nanoseconds timeout{};
  /// What counts as one host, on which ranks share memory; this machine if empty. Up to 95 bytes.
  std::string machine;
};

/// The agreement of ranks that need no MPI. Collective: blocks until all ranks have come.
///
/// Ranks of one host share memory: a reduction among them takes no system call. Each rank has a
/// connection to rank 0 by which it learns at once when another one is gone, and over which hosts
/// reduce among themselves: the last rank of a host to enter sends the host's minima to rank 0,
/// which sends those of all to every rank. A thread of its own serves these connections.
///
/// Callbacks run inside `progress`, which has to be called for as long as it says so. Once a rank
/// is gone or its agreement destroyed, reductions that it has not entered end on all others with
/// `rank_unresponsive` and a sentence that names it, and so do all later ones. Vectors of unequal
/// length give every rank `configuration_mismatch`; longer ones than rank_limits::values
/// `limit_reached`. `missing` knows exactly which ranks of its own host have not arrived; of other
/// hosts, rank 0 knows which of them lack a rank.
/// @returns invalid_argument with a sentence for options that cannot be, or that rank 0 refuses
///          (another size or job, a rank that is there already); rank_unresponsive with a sentence
///          that says who has not come; io_failure if the system lacks memory or sockets
result<std::unique_ptr<rank_reducer>> make_socket_reducer(const socket_reducer_options& options);

} // namespace hicache
