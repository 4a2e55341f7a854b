#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace hicache {

/// A FIFO mutex: threads get it in the order of their requests. A thread that relocks it at once
/// delays others by one turn only; with std::mutex it can be hundreds. Any thread.
class fair_mutex {
public:
  void lock() {
    auto guard = std::unique_lock{mutex_};
    const auto turn = tickets_++;
    changed_.wait(guard, [this, turn] { return turn == turn_; });
  }

  void unlock() {
    const auto guard = std::scoped_lock{mutex_};
    ++turn_;
    changed_.notify_all();
  }

  /// Number of waiting threads.
  uint64_t waiting() {
    const auto guard = std::scoped_lock{mutex_};
    return tickets_ == turn_ ? 0 : tickets_ - turn_ - 1;
  }

private:
  std::mutex mutex_; // Guards what follows.
  std::condition_variable changed_;
  uint64_t tickets_ = 0;
  /// Ticket whose turn it is.
  uint64_t turn_ = 0;
};

} // namespace hicache
