#pragma once

#include "cache/prefix/tree_options.hpp"

#include <cstdint>

namespace hicache {

/// State that every part of a prefix_cache reads and only prefix_cache changes.
struct cache_settings {
  tree_options options;
  /// Counts attachments of L3: outcomes of operations that began under an earlier one are ignored.
  uint64_t storage_epoch = 0;
  /// Latest logical time provided by a step, in nanoseconds.
  int64_t now_ns = 0;
  /// L3 may have evicted what it wrote or read at or before this logical time; 0: nothing.
  int64_t lost_ns = 0;
  /// True from stop_serving() to clear().
  bool is_stopped = false;

  uint64_t tokens(uint64_t pages) const noexcept { return pages * options.page_size; }

  /// Pages that hold `tokens` tokens, the last one perhaps in part.
  uint64_t pages_for(uint64_t tokens) const noexcept {
    return (tokens + options.page_size - 1) / options.page_size;
  }

  /// Inserts along a node from which the write policy demands it in L2, and L3, while it is in L1.
  uint64_t least_hits() const noexcept {
    if (options.write == write_policy::write_back)
      return 0;
    return options.write == write_policy::write_through ? 1 : 2; // 2 is SGLang's default.
  }

  /// True if L3 is attached and still the one of that epoch.
  bool is_attached_since(uint64_t epoch) const noexcept {
    return options.storage_attached && epoch == storage_epoch;
  }
};

} // namespace hicache
