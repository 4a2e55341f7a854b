#pragma once

#include "hicache/events.hpp"

#include <cstdint>
#include <vector>

namespace hicache {

/// Collects events and merges adjacent ones: consecutive stores that continue each other on one
/// medium, and consecutive removals from one medium. The order of events is kept.
class event_queue {
public:
  /// @param overlap Tokens by which adjacent pages overlap: 1 with bigrams, else 0.
  explicit event_queue(uint32_t overlap = 0) : overlap_(overlap) {}

  void add(pages_stored event);
  void add(pages_removed event);
  void add(cache_cleared event);

  /// Takes the collected events.
  std::vector<cache_event> take();

  bool empty() const noexcept { return list_.empty(); }

private:
  uint32_t overlap_;
  std::vector<cache_event> list_;
};

} // namespace hicache
