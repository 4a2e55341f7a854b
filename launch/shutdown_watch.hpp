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
  shutdown_watch() = default;

  /// Disarms: the shutdown has finished.
  ~shutdown_watch();

  /// After `time`, flushes the logs and exits with `code`, without destructors or exit handlers.
  /// @pre not armed yet
  void arm(std::chrono::nanoseconds time, int code);

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread waiter_;
};

} // namespace hicache
