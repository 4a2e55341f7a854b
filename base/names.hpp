#pragma once

#include "hicache/error.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

/// Names of an enumeration whose values count from 0. Lists of names are in the values' order and
/// hold literals.
namespace hicache {

/// @returns the value's name; "unknown" if it has none
template <class T>
const char* name_of(std::span<const std::string_view> names, T value) noexcept {
  const auto at = static_cast<size_t>(value);
  return at < names.size() ? names[at].data() : "unknown";
}

/// "a, b or c".
std::string alternatives(std::span<const std::string_view> names);

/// @returns invalid_argument: "'NAME' is not KIND; expected …"
tl::unexpected<error> unknown_name(std::span<const std::string_view> names, std::string_view name,
                                   std::string_view kind);

/// Finds the value of a name.
/// @param kind What the name should have been: "known", "a colour".
/// @returns as unknown_name
template <class T>
result<T> find_name(std::span<const std::string_view> names, std::string_view name,
                    std::string_view kind = "known") {
  const auto found = std::ranges::find(names, name);
  if (found == names.end())
    return unknown_name(names, name, kind);
  return static_cast<T>(found - names.begin());
}

} // namespace hicache
