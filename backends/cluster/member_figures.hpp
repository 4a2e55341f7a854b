#pragma once

#include <atomic>
#include <cstdint>

namespace hicache {

/// What a process does in the cluster store, counted since it joined. Any thread.
struct member_figures {
  // Written by the backend.

  /// Pages read, pages that were wanted and not found, and pages that could not be read.
  std::atomic<uint64_t> hits = 0;
  std::atomic<uint64_t> misses = 0;
  std::atomic<uint64_t> errors = 0;

  // Written by the segment.

  /// Pages published now, and the bytes of the segment that are taken.
  std::atomic<uint64_t> pages = 0;
  std::atomic<uint64_t> used_bytes = 0;
  /// Pages that went to make room.
  std::atomic<uint64_t> evicted = 0;
  /// Of memory that outlived a process: pages offered again, pages that did not verify, and bytes
  /// not looked at yet.
  std::atomic<uint64_t> kept = 0;
  std::atomic<uint64_t> dropped = 0;
  std::atomic<uint64_t> unscanned_bytes = 0;
  /// Pages whose lost copies were made anew, and times that too few members took such a page.
  std::atomic<uint64_t> repaired = 0;
  std::atomic<uint64_t> repair_failures = 0;
  /// Pages that lack copies now.
  std::atomic<uint64_t> unrepaired = 0;
};

} // namespace hicache
