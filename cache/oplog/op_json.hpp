#pragma once

// Reads and writes the JSON objects of op logs and op scripts. Included only by their sources.

#include "base/names.hpp"
#include "cache/prefix/prefix_cache.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <absl/strings/str_cat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace hicache::op_json {

using json = nlohmann::json;

/// Names of an enumeration, in its values' order.
template <class Enum>
inline constexpr auto names_of = nullptr;
template <>
inline constexpr auto names_of<write_policy> = std::to_array<std::string_view>(
  {"write_through", "write_through_selective", "write_back"});
template <>
inline constexpr auto names_of<prefetch_policy> = std::to_array<std::string_view>({"best_effort",
                                                                                   "wait_complete",
                                                                                   "timeout"});
template <>
inline constexpr auto names_of<storage_change::action> = std::to_array<std::string_view>(
  {"attach", "detach", "release"});
template <>
inline constexpr auto names_of<cache_tier> = std::to_array<std::string_view>({"device", "host"});
template <>
inline constexpr auto names_of<page_order> = std::to_array<std::string_view>({"newest_first",
                                                                              "ascending"});

// -- reading one value: returns what was expected, or an empty text on success -------------------

std::string read(const json& from, bool& to);
template <std::integral Integer>
std::string read(const json& from, Integer& to) {
  constexpr auto least = std::numeric_limits<Integer>::min();
  constexpr auto most = std::numeric_limits<Integer>::max();
  if (from.is_number_unsigned() && std::in_range<Integer>(from.get<uint64_t>()))
    to = static_cast<Integer>(from.get<uint64_t>());
  else if (from.is_number_integer() && !from.is_number_unsigned()
           && std::in_range<Integer>(from.get<int64_t>()))
    to = static_cast<Integer>(from.get<int64_t>());
  else
    return "expected a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  return {};
}
template <class Enum>
requires std::is_enum_v<Enum> std::string read(const json& from, Enum& to) {
  const auto names = std::span<const std::string_view>{names_of<Enum>};
  const auto name = from.is_string() ? std::string_view{from.get_ref<const std::string&>()} : "";
  const auto i = std::ranges::find(names, name);
  if (i == names.end())
    return "expected " + alternatives(names);
  to = static_cast<Enum>(i - names.begin());
  return {};
}
std::string read(const json& from, double& to);
std::string read(const json& from, std::string& to);
std::string read(const json& from, std::chrono::nanoseconds& to);
std::string read(const json& from, eviction_policy_ptr& to);
/// Tokens or page numbers: the types are the same.
std::string read(const json& from, token_buffer& to);
std::string read(const json& from, std::vector<int64_t>& to);
/// Lists of pages; JSON null is a null list.
std::string read(const json& from, std::vector<page_list>& to);
/// [arrived, found, why, load_ns, compute_ns, from_above...] of each; the last number of from_above
/// stands for all that are left out. Older logs have the first three only.
std::string read(const json& from, std::vector<fetch_fact>& to);

// -- writing one value: appends to the text -------------------------------------------------------

void write(std::string& text, bool value);
template <std::integral Integer>
void write(std::string& text, Integer value) {
  absl::StrAppend(&text, value);
}
/// A span, because g++ 12 merges the instances for arrays of several sizes and warns of bounds.
template <class Enum>
requires std::is_enum_v<Enum>
void write(std::string& text, Enum value) {
  const auto names = std::span<const std::string_view>{names_of<Enum>};
  text.append("\"").append(names[static_cast<size_t>(value)]).append("\"");
}
/// Text that is not UTF-8 becomes {"hex":...}.
void write(std::string& text, const std::string& value);
void write(std::string& text, std::chrono::nanoseconds value);
void write(std::string& text, const eviction_policy_ptr& value);
void write(std::string& text, const token_buffer& value);
void write(std::string& text, const std::vector<int64_t>& value);
void write(std::string& text, const std::vector<page_list>& value);
void write(std::string& text, const std::vector<fetch_fact>& value);

/// Parses a line as an object. @returns malformed_message if it is none.
result<json> parse_object(std::string_view line);

// -- objects --------------------------------------------------------------------------------------

/// Reads an object key by key; keeps the first error.
class object_reader {
public:
  explicit object_reader(const json& object) : object_(object) {}

  /// Reads a required key.
  template <class T>
  void need(const char* key, T& value) {
    if (!take(key, value))
      complain(std::string{"key '"} + key + "' is missing");
  }

  /// Reads an optional key; `fallback` if absent.
  template <class T, class Fallback = T>
  void may(const char* key, T& value, const Fallback& fallback = {}) {
    if (!take(key, value))
      value = static_cast<T>(fallback);
  }

  /// Allows a key and ignores it.
  void ignore(const char* key) { known_.emplace_back(key); }

  void complain(std::string why) {
    if (why_.empty())
      why_ = std::move(why);
  }

  /// @returns invalid_argument with one sentence, also for a key that was not read.
  result<void> finish();

private:
  template <class T>
  bool take(const char* key, T& value) {
    known_.emplace_back(key);
    const auto i = object_.find(key);
    if (i == object_.end())
      return false;
    if (auto expected = read(*i, value); !expected.empty())
      complain(std::string{"key '"} + key + "' holds " + describe(*i) + "; " + expected);
    return true;
  }

  static std::string describe(const json& value);

  static std::string shorten(std::string text);

  const json& object_;
  std::vector<std::string_view> known_;
  std::string why_;
};

/// Writes an object as text, keys in call order.
class object_writer {
public:
  template <class T>
  void need(const char* key, const T& value) {
    text_ += text_.empty() ? "{\"" : ",\"";
    text_ += key;
    text_ += "\":";
    write(text_, value);
  }

  /// Omits the fallback.
  template <class T, class Fallback = T>
  void may(const char* key, const T& value, const Fallback& fallback = {}) {
    if (value != static_cast<T>(fallback))
      need(key, value);
  }

  std::string finish() { return std::move(text_) + "}"; }

private:
  std::string text_;
};

} // namespace hicache::op_json
