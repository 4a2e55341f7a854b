#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <optional>
#include <string_view>

namespace hicache {

/// Parses a caller's configuration. Its length and depth are bounded, because the parser is
/// recursive.
/// @returns nothing if it is no JSON object within these bounds
inline std::optional<nlohmann::json> parse_object(std::string_view text, size_t most_bytes,
                                                  int most_levels) {
  if (text.size() > most_bytes)
    return std::nullopt;
  auto is_too_deep = false;
  const auto look = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    is_too_deep = is_too_deep || depth > most_levels;
    return !is_too_deep;
  };
  auto parsed = nlohmann::json::parse(text, look, false);
  if (is_too_deep || !parsed.is_object())
    return std::nullopt;
  return parsed;
}

} // namespace hicache
