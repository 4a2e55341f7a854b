#pragma once

#include "base/unique_fd.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace hicache {

/// What a queue is made of whose user polls an eventfd, or waits. Any thread.
class polled_queue {
public:
  /// @returns io_failure if no eventfd can be made
  result<void> start();

  /// Wakes all waiting threads and returns when none waits. Nothing can be taken afterwards.
  void close();

  /// Readable exactly while something can be taken.
  int event() const noexcept { return event_.get(); }

protected:
  // With the lock held.

  /// Notes that something was added.
  /// @param is_first There was nothing before.
  void added(bool is_first);

  /// Notes that nothing is left.
  void emptied();

  /// Waits until `is_there`, or the deadline.
  /// @returns stopping after close()
  template <class IsThere>
  result<void> wait(std::unique_lock<std::mutex>& guard, time_point deadline, IsThere is_there) {
    ++waiters_;
    changed_.wait_until(guard, deadline, [&] { return is_closed_ || is_there(); });
    if (--waiters_ == 0 && is_closed_)
      changed_.notify_all();
    return is_closed_ ? fail(ec::stopping) : result<void>{};
  }

  mutable std::mutex mutex_; // Guards what is in the queue, and what follows.
  bool is_closed_ = false;

private:
  unique_fd event_;
  std::condition_variable changed_;
  size_t waiters_ = 0;
};

} // namespace hicache
