#pragma once

#include "base/unique_fd.hpp"
#include "hicache.h"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <set>
#include <span>

namespace hicache {

/// Calls that are open, and completions that wait to be taken. Any thread. An eventfd is readable
/// exactly as long as completions wait.
class completions {
public:
  /// @param most Calls that may be open, with those whose completions wait.
  /// @pre most > 0
  explicit completions(size_t most);

  /// @returns io_failure if there is no eventfd
  result<void> start();

  /// Numbers a call.
  /// @returns limit_reached; stopping
  result<hc_ticket> open();

  /// A call has completed. Its ticket was opened, and completes once. Lost after close().
  void add(const hc_completion& done);

  /// Takes completions, waiting for the first one.
  /// @returns how many; stopping
  result<size_t> take(std::span<hc_completion> room, time_point deadline);

  /// Takes one, waiting for it.
  /// @returns unknown_id; deadline_exceeded; stopping
  result<hc_completion> take(hc_ticket ticket, time_point deadline);

  /// Whether a call is open, or its completion waits to be taken.
  bool has(hc_ticket ticket) const;

  /// Ends all waiting, and returns when nobody waits any more. Nothing is taken from now on.
  void close();

  int event() const noexcept { return event_.get(); }

  struct figures {
    size_t open = 0;
    size_t waiting = 0;
  };

  figures counts() const;

private:
  /// Somebody waits.
  class waiter;

  /// A completion was taken.
  void took();

  const size_t most_;
  unique_fd event_;
  mutable std::mutex mutex_; // Guards what follows.
  std::condition_variable changed_;
  hc_ticket last_ = 0;
  std::set<hc_ticket> open_;
  std::deque<hc_completion> done_;
  size_t waiters_ = 0;
  bool is_closed_ = false;
};

} // namespace hicache
