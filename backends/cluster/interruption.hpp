#pragma once

#include "base/unique_fd.hpp"

#include <atomic>
#include <mutex>

namespace hicache {

/// Ends what one thread waits for in poll() or at a socket. Any thread raises it, for good.
class interruption {
public:
  interruption();

  void raise();

  bool is_raised() const noexcept { return raised_.load(std::memory_order_acquire); }

  /// Readable from raise() on.
  int event() const noexcept { return event_.get(); }

  /// From now on raise() shuts this socket down, which ends calls that wait for it, instead of the
  /// one of the call before. Does not take the socket.
  void guard(int socket);

  /// From now on raise() shuts no socket down.
  void unguard();

private:
  std::atomic<bool> raised_{false};
  unique_fd event_;
  std::mutex mutex_;
  /// Of its own, so that it never is another socket that got the number.
  unique_fd socket_;
};

} // namespace hicache
