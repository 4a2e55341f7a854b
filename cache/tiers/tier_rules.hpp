#pragma once

#include "hicache/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace hicache {

/// Which objects are written to a tier of L3.
struct tier_writes {
  enum class rule : uint8_t {
    /// Every object, when it is stored.
    all,
    /// What the tier above evicts.
    evict,
    /// Objects of other tiers, at their N-th use.
    hits,
    /// None, except by promotion.
    never,
  };

  rule which = rule::all;
  /// N of rule `hits`.
  uint32_t hits = 0;

  friend bool operator==(const tier_writes&, const tier_writes&) = default;
};

/// Parses "all", "evict", "hits:N" with N from 1 to 1000, or "never".
/// @returns invalid_argument with what was expected
/// @relates tier_writes
result<tier_writes> parse_tier_writes(std::string_view text);

/// @relates tier_writes
std::string to_string(const tier_writes& writes);

/// What a tier of L3 takes.
struct tier_rules {
  tier_writes writes;
  /// Objects that a lower tier had are written here at their second use. The first one may belong
  /// to a scan that never comes back.
  bool promotes = true;
  /// Bytes written to the tier per second and per day; 0: unlimited. The second protects an SSD
  /// from wear.
  uint64_t bytes_per_second = 0;
  uint64_t bytes_per_day = 0;
};

/// Whether a use of an object leads to a write to a tier.
/// @param uses Uses of the object so far, this one included.
/// @param is_above Whether the tier lies above the one that had the object.
/// @relates tier_rules
bool is_copied(const tier_rules& rules, uint32_t uses, bool is_above) noexcept;

} // namespace hicache
