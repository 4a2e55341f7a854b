#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace hicache {

/// Ends the process if its shutdown hangs, for example in a system call. Create it before objects
/// whose destructor may hang, and arm it when nothing is left to save: after reports are written.
class shutdown_watch {
public:
  /// After `time`, flushes the logs and exits with `code`, without destructors or exit handlers,
  /// unless this object is destroyed before: the shutdown has finished.
  /// @pre not armed yet
  void arm(std::chrono::nanoseconds time, int code);

private:
  std::mutex mutex_;
  std::condition_variable_any over_;
  std::jthread waiter_;
};

} // namespace hicache
