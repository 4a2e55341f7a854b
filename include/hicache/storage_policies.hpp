#pragma once

#include "hicache/clock.hpp"

#include <chrono>
#include <cstdint>

/// How a rank uses L3. Every rank may have values of its own.
namespace hicache {

/// How pages move between L2 and L3.
struct storage_traffic {
  /// Pages per call of the store. SGLang's batch size: large enough to hide a millisecond of
  /// latency, small enough for a prefetch to stop soon after its termination.
  uint32_t batch_pages = 128;
  /// Batches in flight per prefetch, and of all backups together: two per worker thread of a store
  /// (by default), which keeps the store busy.
  uint32_t batches_in_flight = 4;
  /// Attempts per failed write, and the pause before the second attempt, which then doubles: 1.5 s
  /// in all, longer than a store takes to restart a connection and short enough not to keep L2
  /// pages from eviction for long.
  uint32_t backup_attempts = 5;
  duration backup_pause = std::chrono::milliseconds{100};
};

/// When calls stop going to a store that fails.
struct breaker_policy {
  /// Consecutive failures of one kind of call. A store with occasional failures (one batch in
  /// fifty) does not reach three in years.
  uint64_t failures = 3;
  /// Shortest and longest pause before the store is probed: long enough that the deadline of a
  /// failing probe is a small share of the time, short enough that a restarted store is used again
  /// within a minute.
  duration pause_min = std::chrono::seconds{5};
  duration pause_max = std::chrono::seconds{60};
};

/// How a member of the cluster re-replicates pages that lost copies.
struct repair_policy {
  /// Bytes per second read from this member for it: an eighth of a 10 Gbit/s adapter, so that pages
  /// of waiting requests come first. 0: unlimited.
  uint64_t bytes_per_second = uint64_t{160} << 20;
  /// Delay between the notification of the loss and the copy. The index waits its member ttl before
  /// it notifies, but not for a member that mounts again and reports all its pages.
  duration delay = std::chrono::seconds{5};
};

} // namespace hicache
