#pragma once

#include "base/unique_fd.hpp"

#include <atomic>
#include <chrono>
#include <thread>

namespace hicache {

/// Turns SIGINT and SIGTERM into a flag to poll. Create it first in main, before any other thread,
/// so that every thread inherits the blocked signals. A second signal ends the process at once.
class stop_signal {
public:
  stop_signal();

  ~stop_signal();

  /// True once a signal has arrived. Any thread.
  bool raised() const noexcept { return raised_.load(std::memory_order_acquire) != 0; }

  /// Blocks until a signal arrives or `time` has passed. Any thread. @returns raised()
  bool wait_for(std::chrono::nanoseconds time) const;

private:
  std::atomic<int> raised_{0};
  unique_fd event_;
  std::thread waiter_;
};

} // namespace hicache
