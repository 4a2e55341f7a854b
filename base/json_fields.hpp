#pragma once

#include "base/immovable.hpp"
#include "base/names.hpp"
#include "hicache/error.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace hicache {

/// The deepest nesting of a text's lists and objects, if it is JSON. Linear, unlike a parser with a
/// callback, which looks through all elements again at the end of each.
inline int nesting_of(std::string_view text) {
  auto levels = 0;
  auto deepest = 0;
  auto is_quoted = false;
  for (auto at = size_t{0}; at < text.size(); ++at) {
    const auto letter = text[at];
    if (is_quoted && letter == '\\')
      ++at;
    else if (letter == '"')
      is_quoted = !is_quoted;
    else if (!is_quoted && (letter == '{' || letter == '['))
      deepest = std::max(deepest, ++levels);
    else if (!is_quoted && (letter == '}' || letter == ']'))
      --levels;
  }
  return deepest;
}

/// Parses an object that others wrote. Its length and depth are bounded.
/// @returns nothing if it is no JSON object within these bounds
inline std::optional<nlohmann::json> parse_object(std::string_view text, size_t most_bytes,
                                                  int most_levels) {
  if (text.size() > most_bytes || nesting_of(text) > most_levels)
    return std::nullopt;
  auto parsed = nlohmann::json::parse(text, nullptr, false);
  if (!parsed.is_object())
    return std::nullopt;
  return parsed;
}

/// Reads fields of a JSON object that others wrote, and keeps the first complaint: a sentence that
/// begins with the field's name in quotes. What is null counts as absent.
class json_fields : immovable {
public:
  /// @param object Must outlive the reader.
  explicit json_fields(const nlohmann::json& object) : object_(object) {}

  /// For an object within another one, with whose complaints it shares the first place.
  json_fields(const nlohmann::json& object, json_fields& around)
    : object_(object), complaint_(around.complaint_) {}

  /// @returns invalid_argument with `beginning` and the first complaint, if there is one
  result<void> finish(const std::string& beginning = {}) const {
    if (!complaint_.empty())
      return fail(ec::invalid_argument, beginning + complaint_);
    return {};
  }

  /// Null if there is none.
  nlohmann::json field(const char* name) const { return object_.value(name, nlohmann::json{}); }

  bool has(const char* name) const { return !field(name).is_null(); }

  /// A number; it has to be there unless there is another one to take.
  template <class T>
  T number(const char* name, T least, T most,
           std::optional<std::type_identity_t<T>> otherwise = {}) {
    using wide = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
    const auto value = field(name);
    if (value.is_null() && otherwise)
      return *otherwise;
    const auto is_beyond = value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX;
    const auto fits
      = std::is_integral_v<T> ? value.is_number_integer() && !is_beyond : value.is_number();
    if (fits && value.get<wide>() >= static_cast<wide>(least)
        && value.get<wide>() <= static_cast<wide>(most))
      return static_cast<T>(value.get<wide>());
    complain(name, "expected a number from " + nlohmann::json(least).dump() + " to "
                     + nlohmann::json(most).dump());
    return least;
  }

  /// One of the names of an enumeration (base/names.hpp).
  template <class T>
  T choice(const char* name, std::span<const std::string_view> names,
           const std::string& otherwise = {}) {
    const auto chosen = find_name<T>(names, text(name, otherwise));
    if (!chosen)
      complain(name, "expected " + alternatives(names));
    return chosen.value_or(T{});
  }

  bool flag(const char* name) {
    const auto value = field(name);
    if (!value.is_null() && !value.is_boolean())
      complain(name, "expected true or false");
    return value == true;
  }

  std::string text(const char* name, const std::string& otherwise = {}) {
    const auto value = field(name);
    if (!value.is_null() && !value.is_string())
      complain(name, "expected a text");
    return value.is_string() ? value.get<std::string>() : otherwise;
  }

  void complain(const char* name, const std::string& what) {
    if (complaint_.empty())
      complaint_ = "\"" + std::string{name} + "\": " + what;
  }

private:
  const nlohmann::json& object_;
  std::string own_;
  std::string& complaint_ = own_;
};

} // namespace hicache
