#pragma once

#include "cache/prefix/cache_settings.hpp"
#include "cache/prefix/digested_map.hpp"
#include "cache/prefix/lock_census.hpp"
#include "cache/prefix/open_copies.hpp"
#include "cache/radix/radix_tree.hpp"

#include <absl/container/btree_set.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// Pins: prefixes that stay cached until a logical time, within a budget of pages per tenant. A
/// pin's ttl starts at the next step, since only steps provide the time. Part of a prefix_cache.
class open_pins {
public:
  open_pins(radix_tree& tree, open_copies& copies, const cache_settings& settings)
    : tree_(tree), copies_(copies), settings_(settings) {}

  /// Pages on this path that no pin keeps yet.
  static uint64_t unpinned_pages(const path_end& end);

  /// True if the tenant's budget allows a pin on this path.
  bool fits_budget(const path_end& end) const;

  /// Begins or prolongs the pin that ends there, and copies to L2 what the write policy demands.
  void begin(radix_node& end, std::chrono::nanoseconds ttl);

  /// Restarts the ttl of all pins that end on the path to `end`, if enabled in the options.
  void refresh(const radix_node& end);

  /// Ends all pins that end within this path.
  void end_within(const path_end& end);

  /// Ends all pins that end at `top` or below.
  void end_below(const radix_node& top);

  void end_all();

  /// A step has provided the time: starts the ttl of new pins and ends expired ones.
  void advance();

  bool empty() const noexcept { return pins_.empty(); }

  /// True while the ttl of some pin has yet to start.
  bool is_waiting() const noexcept { return !asked_.empty(); }

  /// Pages that pins keep.
  uint64_t pages() const;

  /// The pins' own digest, and their number.
  std::array<uint64_t, 2> digest() const noexcept { return {pins_.digest(), pins_.size()}; }

  void count_locks(lock_census& census) const;

  void check_invariants() const;

private:
  struct open_pin {
    radix_node* end = nullptr;
    int64_t expiry_ns = 0;
    /// False until the first step provides the time; then the pin is in `expiries_`.
    bool is_timed = false;
    /// ttl requested since the last step, or 0: starts at the next one.
    int64_t asked_ttl_ns = 0;
    /// The longest requested ttl.
    int64_t ttl_ns = 0;
  };

  static uint64_t digest_of(const open_pin& pin) noexcept;
  void end(node_id id);

  radix_tree& tree_;
  open_copies& copies_;
  const cache_settings& settings_;
  /// By the node that each pin ends with, and by expiry.
  digested_map<std::map<node_id, open_pin>> pins_{&digest_of};
  absl::btree_set<std::pair<int64_t, node_id>> expiries_;
  /// Pins with a pending `asked_ttl_ns`, in order of request.
  std::vector<node_id> asked_;
  /// Pages that the pins of each tenant (salt) keep.
  std::map<std::string, uint64_t> pages_;
};

} // namespace hicache
