#pragma once

#include "backends/storage_backend.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace hicache {

/// Makes a store asynchronous: batches wait in one queue, in order, for a few worker threads. Any
/// thread may submit.
///
/// Every batch is answered exactly once. At most limits::storage_queue_batches wait; one more is
/// answered with limit_reached (exists: all false) on the submitting thread. A store that throws
/// answers io_failure. The bytes behind a batch's parts must stay valid until its answer.
class storage_queue {
public:
  using exists_callback = std::function<void(std::vector<bool>)>;
  using pages_callback = std::function<void(std::vector<result<void>>)>;

  /// @param threads Workers; with 0 a batch runs on the submitting thread before submit returns
  /// (for deterministic tests).
  storage_queue(std::unique_ptr<storage_backend> backend, size_t threads);

  storage_queue(const storage_queue&) = delete;
  storage_queue& operator=(const storage_queue&) = delete;

  /// Answers the batches that still wait with `stopping` (exists: all false), on the calling
  /// thread, and waits for those that run.
  ~storage_queue();

  /// Callbacks run on a worker; they must not throw, nor destroy the queue.
  void submit_exists(std::vector<page_key> keys, time_point deadline, exists_callback done);

  void submit_get(std::vector<page_read> pages, time_point deadline, pages_callback done);

  void submit_set(std::vector<page_write> pages, time_point deadline, pages_callback done);

  void submit_remove(std::vector<page_key> keys, time_point deadline, pages_callback done);

  /// The store itself, for what is not queued: name() and health().
  storage_backend& backend() noexcept { return *backend_; }

private:
  struct batch {
    std::function<void()> run;
    std::function<void(const error&)> refuse;
  };

  void submit(batch next);
  void work();

  std::unique_ptr<storage_backend> backend_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<batch> waiting_;
  bool closing_ = false;
  // Last, so that they have ended before what they use is gone.
  std::vector<std::jthread> workers_;
};

} // namespace hicache
