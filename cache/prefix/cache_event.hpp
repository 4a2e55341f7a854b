#pragma once

#include "cache/hash/page_names.hpp"
#include "cache/radix/token_span.hpp"
#include "hicache/events.hpp"

#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace hicache {

/// A pages_stored whose pages need not be named yet.
struct stored_change {
  cache_medium medium = cache_medium::l1;
  cache_namespace ns;
  /// Ends with the name of the page before; empty at the start of a prompt.
  name_run before;
  name_run names;
  token_span tokens;
  /// Tokens by which adjacent pages overlap: 1 with bigrams, else 0.
  uint32_t overlap = 0;
};

/// A pages_removed whose pages need not be named yet.
struct removed_change {
  cache_medium medium = cache_medium::l1;
  name_run names;
};

/// An event as the tree notes it, which hashes nothing.
using cache_change = std::variant<stored_change, removed_change, cache_cleared>;

/// Names the pages, and merges adjacent events (event_queue). Any thread.
std::vector<cache_event> name_events(std::span<const cache_change> changes);

/// Collects events and merges adjacent ones: consecutive stores that continue each other on one
/// medium, and consecutive removals from one medium. The order of events is kept.
class event_queue {
public:
  /// @param overlap Tokens by which adjacent pages overlap: 1 with bigrams, else 0.
  explicit event_queue(uint32_t overlap = 0) : overlap_(overlap) {}

  void add(pages_stored event);
  void add(pages_removed event);
  void add(cache_cleared event) { list_.emplace_back(event); }

  /// Takes the collected events.
  std::vector<cache_event> take() { return std::exchange(list_, {}); }

  bool empty() const noexcept { return list_.empty(); }

private:
  uint32_t overlap_;
  std::vector<cache_event> list_;
};

} // namespace hicache
