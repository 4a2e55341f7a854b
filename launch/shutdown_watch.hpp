#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace hicache {

/// Ends the process if it does not end by itself: the last resort against a call that the kernel
/// does not let go. Create it before what may hang in its destructor, and arm it when there is
/// nothing left to save: reports are written then.
class shutdown_watch {
public:
  shutdown_watch() = default;

  /// Nothing hung.
  ~shutdown_watch();

  shutdown_watch(const shutdown_watch&) = delete;
  shutdown_watch& operator=(const shutdown_watch&) = delete;

  /// From now on the process has this long: then its logs are flushed and it ends with `code`, with
  /// no destructor and no exit handler.
  /// @pre it was not called before
  void arm(std::chrono::nanoseconds time, int code);

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread waiter_;
};

} // namespace hicache
