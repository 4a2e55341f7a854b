#pragma once

#include "base/clock.hpp"
#include "transport/page_messages.hpp"

#include <cstdint>
#include <unordered_map>

namespace hicache {

/// How often an owner sent which pages within the last moments, so that the bytes of a page which
/// many readers want at once leave it a bounded number of times: those that just got it serve the
/// others. Keeps the last one to two limits::demand_moment. Pure; not thread-safe.
class page_demand {
public:
  /// Decides about a span that a reader asks for now. Refuses one that was sent
  /// limits::demand_serves times if somebody will offer it, unless the reader insists.
  span_state admit(const page_span& wanted, time_point now);

private:
  struct count {
    uint32_t sent = 0;
    /// Whether somebody who got it offers it.
    bool is_lent = false;
  };

  using counts = std::unordered_map<uint64_t, count>;

  time_point begin_;
  counts current_;
  /// Of the moment before.
  counts last_;
};

} // namespace hicache
