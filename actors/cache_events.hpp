#pragma once

#include "cache/prefix/cache_event.hpp"

#include <cstdint>
#include <vector>

namespace hicache {

/// What became true in the cache since the last such message, in order. Shared by reference inside
/// a process.
struct cache_events {
  std::vector<cache_event> list;
  /// Counts these messages, from 0.
  uint64_t number = 0;
};

} // namespace hicache
