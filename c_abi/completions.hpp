#pragma once

#include "base/polled_queue.hpp"
#include "hicache.h"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <cstddef>
#include <deque>
#include <set>
#include <span>

namespace hicache {

/// Open calls and untaken completions; an eventfd is readable exactly while the latter exist. Any
/// thread.
class completions : public polled_queue {
public:
  /// @param most Maximum open calls, including those whose completions were not taken.
  /// @pre most > 0
  explicit completions(size_t most);

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

  struct figures {
    size_t open = 0;
    size_t waiting = 0;
  };

  figures counts() const;

private:
  const size_t most_;
  hc_ticket last_ = 0;
  std::set<hc_ticket> open_;
  std::deque<hc_completion> done_;
};

} // namespace hicache
