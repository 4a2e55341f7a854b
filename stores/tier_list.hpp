#pragma once

#include "hicache/error.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

/// The tiers of an extra configuration of L3 as JSON text, and how they change. Pure.
namespace hicache {

/// What differs between two lists of tiers.
struct tier_difference {
  /// Index of the tier in the list that has it.
  size_t at = 0;
  /// The second list has it, not the first one.
  bool is_new = false;

  friend bool operator==(const tier_difference&, const tier_difference&) = default;
};

/// Puts a tier into the list.
/// @param tier Its keys as JSON, without `backend`; may be empty.
/// @param number Its number in the order, 1 for the fastest; nothing: after the last one.
/// @returns the extra configuration with it, or invalid_argument with a sentence
result<std::string> with_tier(const std::string& extra_config, const std::string& backend,
                              const std::string& tier, std::optional<size_t> number);

/// Takes a tier out of the list.
/// @param tier Its number, or its backend.
/// @returns the extra configuration without it, or invalid_argument with a sentence
result<std::string> without_tier(const std::string& extra_config, std::string_view tier);

/// Compares two extra configurations.
/// @returns invalid_argument with a sentence unless one of them has one tier more and they are
/// otherwise equal
result<tier_difference> compare_tiers(const std::string& before, const std::string& after);

} // namespace hicache
