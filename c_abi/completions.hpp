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

/// Open calls and untaken completions; an eventfd is readable exactly while the latter exist. Any
/// thread.
class completions {
public:
  /// @param most Maximum open calls, including those whose completions were not taken.
  /// @pre most > 0
  explicit completions(size_t most);

  /// @returns io_failure if no eventfd can be made
  result<void> start();

  /// Opens a call and returns its ticket.
  /// @returns limit_reached; stopping
  result<hc_ticket> open();

  /// Adds the completion of an open call, once per ticket. Dropped after close().
  void add(const hc_completion& done);

  /// Takes completions, waiting for the first.
  /// @returns how many, 0 at the deadline; stopping
  result<size_t> take(std::span<hc_completion> room, time_point deadline);

  /// Waits for a call and takes its completion.
  /// @returns unknown_id; deadline_exceeded; stopping
  result<hc_completion> take(hc_ticket ticket, time_point deadline);

  /// Whether a call is open or its completion was not taken.
  bool has(hc_ticket ticket) const;

  /// Wakes all waiting threads and returns when none waits. Nothing can be taken afterwards.
  void close();

  int event() const noexcept { return event_.get(); }

  struct figures {
    size_t open = 0;
    size_t waiting = 0;
  };

  figures counts() const;

private:
  /// Counts a waiting thread.
  class waiter;

  /// Updates the eventfd after completions were taken.
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
