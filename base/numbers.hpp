#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace hicache {

/// The number that a text is as a whole.
/// @returns nothing if it is none, or one that T cannot hold
template <class T>
std::optional<T> parse_number(std::string_view text, int base = 10) {
  auto number = T{};
  const auto* end = text.data() + text.size();
  const auto [rest, status] = std::from_chars(text.data(), end, number, base);
  if (status != std::errc{} || rest != end)
    return std::nullopt;
  return number;
}

} // namespace hicache
