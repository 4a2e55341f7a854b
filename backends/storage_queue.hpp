#pragma once

#include "backends/storage_backend.hpp"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hicache {

/// Makes a store asynchronous: batches wait in one queue, in order, for a few worker threads. Any
/// thread may submit.
///
/// Every batch is answered exactly once. At most limits::storage_queue_batches wait; one more is
/// answered with limit_reached (exists: all false) on the submitting thread. A store that throws
/// answers io_failure. The bytes behind a batch's parts must stay valid until its answer.
///
/// The queue keeps no time. Whoever submits says when a batch is late (`expire`): one that has not
/// begun is taken out; a call that is under way cannot be ended, so another thread takes the place
/// of its worker, for limits::stuck_calls calls at most.
class storage_queue {
public:
  using exists_callback = std::function<void(std::vector<bool>)>;
  using pages_callback = std::function<void(std::vector<result<void>>)>;
  using health_callback = std::function<void(backend_health)>;

  /// What became of a batch that is late.
  enum class expiry {
    /// It had not begun. It is not carried out and not answered any more.
    withdrawn,
    /// The store's call is under way; it is answered when that returns.
    running,
    /// It is answered, or is about to be.
    finished,
  };

  /// @param threads Workers; with 0 a batch runs on the submitting thread before submit returns
  /// (for deterministic tests).
  storage_queue(std::unique_ptr<storage_backend> backend, size_t threads);

  storage_queue(const storage_queue&) = delete;
  storage_queue& operator=(const storage_queue&) = delete;

  /// Closes with limits::shutdown_grace.
  ~storage_queue();

  /// Callbacks run on a worker; they must not throw, nor destroy the queue.
  /// @returns a number for `expire`.
  uint64_t submit_exists(std::vector<page_key> keys, time_point deadline, exists_callback done);

  uint64_t submit_get(std::vector<page_read> pages, time_point deadline, pages_callback done);

  uint64_t submit_set(std::vector<page_write> pages, time_point deadline, pages_callback done);

  uint64_t submit_remove(std::vector<page_key> keys, time_point deadline, pages_callback done);

  /// Asks the store how it is, before all that waits. Not answered if the queue is closed.
  uint64_t submit_health(health_callback done);

  expiry expire(uint64_t number);

  /// Calls under way that have expired.
  size_t stuck() const;

  /// Answers the batches that still wait with `stopping` (exists: all false), on the calling
  /// thread, and waits for those that run. A second call does nothing.
  /// @returns true if all have returned: the store is destroyed. Else the threads of the others and
  /// the store are left behind for good, with all that the store refers to, and nothing is answered
  /// any more.
  bool close(std::chrono::nanoseconds grace);

  /// The name of the store.
  const std::string& name() const noexcept { return name_; }

private:
  struct batch;
  struct shared_state;

  uint64_t submit(batch next);
  static void start_worker(const std::shared_ptr<shared_state>& state);
  static void work(const std::shared_ptr<shared_state>& state);

  const std::string name_;
  const std::shared_ptr<shared_state> state_;
};

} // namespace hicache
