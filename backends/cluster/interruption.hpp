#pragma once

#include "base/unique_fd.hpp"

#include <atomic>
#include <mutex>

namespace hicache {

/// Interrupts a thread that waits in poll() or at a socket. Raised by any thread, permanently.
class interruption {
public:
  interruption();

  void raise();

  bool is_raised() const noexcept { return raised_.load(std::memory_order_acquire); }

  /// Readable from raise() on.
  int event() const noexcept { return event_.get(); }

  /// Makes raise() shut this socket down, which ends calls that wait for it; replaces the socket of
  /// the previous call. Does not take ownership.
  void guard(int socket);

  /// Makes raise() shut no socket down.
  void unguard();

private:
  std::atomic<bool> raised_{false};
  unique_fd event_;
  std::mutex mutex_;
  /// A duplicate, so that it never refers to a reused descriptor.
  unique_fd socket_;
};

} // namespace hicache
