#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace hicache {

/// A mutex that threads get in the order in which they asked for it. One that takes it again as
/// soon as it gave it up holds others up for one turn only; with std::mutex they may wait for
/// hundreds. Any thread.
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

  /// Threads that wait for it now.
  uint64_t waiting() {
    const auto guard = std::scoped_lock{mutex_};
    return tickets_ == turn_ ? 0 : tickets_ - turn_ - 1;
  }

private:
  std::mutex mutex_; // Guards what follows.
  std::condition_variable changed_;
  uint64_t tickets_ = 0;
  /// Of whom it is the turn.
  uint64_t turn_ = 0;
};

} // namespace hicache
