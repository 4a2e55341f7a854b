#pragma once

#include "base/limits.hpp"
#include "hicache/clock.hpp"
#include "transport/page_messages.hpp"

#include <absl/container/inlined_vector.h>

#include <cstdint>
#include <unordered_map>

namespace hicache {

/// Counts to how many readers an owner sent each page recently, so that a popular page leaves the
/// owner a bounded number of times and its recent readers serve the others. A reader counts once
/// per page. Covers the last one to two limits::demand_moment. Pure; not thread-safe.
class page_demand {
public:
  /// Decides about a span requested now. Refuses a span that was sent to limits::demand_serves
  /// other readers if one of them will offer it, unless the reader insists.
  /// @param reader A number unique to the reader.
  span_state admit(uint64_t reader, const page_span& wanted, time_point now);

private:
  struct count {
    /// The first limits::demand_serves readers.
    absl::InlinedVector<uint64_t, limits::demand_serves> readers;
    /// Whether one of the readers offers it.
    bool is_exported = false;
  };

  using counts = std::unordered_map<uint64_t, count>;

  time_point begin_;
  counts current_;
  /// Counts of the previous period.
  counts last_;
};

} // namespace hicache
