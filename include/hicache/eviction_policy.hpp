#pragma once

#include "hicache/error.hpp"

#include <compare>
#include <cstdint>
#include <memory>
#include <string_view>

namespace hicache {

/// How a node has been used. Times are operation counts, so they are equal on all ranks.
struct node_use {
  uint64_t created = 0;
  uint64_t last_access = 0;
  /// Inserts along the node.
  uint64_t hits = 0;
  /// The highest priority of an insert along the node.
  int32_t priority = 0;

  friend bool operator==(const node_use&, const node_use&) = default;
};

/// A node's place in eviction order: the smallest goes first; ties are broken by node id.
struct eviction_rank {
  uint64_t major = 0;
  uint64_t minor = 0;

  friend auto operator<=>(const eviction_rank&, const eviction_rank&) = default;
};

/// Determines the eviction order. For a custom order, derive from this class and pass an object in
/// `rank_extensions::eviction`; all ranks must use the same. Immutable; any thread.
class eviction_policy {
public:
  virtual ~eviction_policy();

  /// A short name for reports and op logs.
  virtual std::string_view name() const noexcept = 0;

  /// Must depend on `use` alone. Called again after every change of `use`, for leaves only.
  virtual eviction_rank rank(const node_use& use) const noexcept = 0;
};

/// @relates eviction_policy
using eviction_policy_ptr = std::shared_ptr<const eviction_policy>;

/// One of the seven policies of SGLang (docs/prefix-cache.md, "Eviction"): lru, lfu, fifo, mru,
/// filo, priority, slru. Names are case-insensitive.
/// @returns invalid_argument with the allowed names.
result<eviction_policy_ptr> make_eviction_policy(std::string_view name);

/// LRU, the default.
eviction_policy_ptr lru_policy();

} // namespace hicache
