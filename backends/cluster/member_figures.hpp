#pragma once

#include <atomic>
#include <cstdint>

namespace hicache {

/// Counters of a process in the cluster store since it joined. Any thread.
struct member_figures {
  // Written by the backend.

  /// Pages read, pages not found, and pages that could not be read.
  std::atomic<uint64_t> hits = 0;
  std::atomic<uint64_t> misses = 0;
  std::atomic<uint64_t> errors = 0;

  // Written by the segment.

  /// Pages published now, and used bytes of the segment.
  std::atomic<uint64_t> pages = 0;
  std::atomic<uint64_t> used_bytes = 0;
  /// Pages evicted to make room.
  std::atomic<uint64_t> evicted = 0;
  /// In lasting memory: pages offered again, pages that did not verify, and bytes not scanned yet.
  std::atomic<uint64_t> kept = 0;
  std::atomic<uint64_t> dropped = 0;
  std::atomic<uint64_t> unscanned_bytes = 0;
  /// Pages whose lost replicas were restored, and attempts that too few members accepted.
  std::atomic<uint64_t> repaired = 0;
  std::atomic<uint64_t> repair_failures = 0;
  /// Pages that lack replicas now.
  std::atomic<uint64_t> unrepaired = 0;
};

} // namespace hicache
