#pragma once

#include "base/limits.hpp"
#include "hicache/clock.hpp"
#include "transport/page_messages.hpp"

#include <absl/container/inlined_vector.h>

#include <cstdint>
#include <unordered_map>

namespace hicache {

/// To how many readers an owner sent which pages within the last moments, so that the bytes of a
/// page which many want at once leave it a bounded number of times: those that just got it serve
/// the others. A reader counts once, however often it reads a page. Keeps the last one to two
/// limits::demand_moment. Pure; not thread-safe.
class page_demand {
public:
  /// Decides about a span that a reader asks for now. Refuses one that was sent to
  /// limits::demand_serves others if somebody will offer it, unless the reader insists.
  /// @param reader Any number of its own.
  span_state admit(uint64_t reader, const page_span& wanted, time_point now);

private:
  struct count {
    /// The first ones.
    absl::InlinedVector<uint64_t, limits::demand_serves> readers;
    /// Whether somebody who got it offers it.
    bool is_exported = false;
  };

  using counts = std::unordered_map<uint64_t, count>;

  time_point begin_;
  counts current_;
  /// Of the moment before.
  counts last_;
};

} // namespace hicache
