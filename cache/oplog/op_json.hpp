#pragma once

// Reads and writes the JSON objects of op logs and op scripts. Included only by their sources.

#include "cache/prefix/prefix_cache.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hicache::op_json {

using json = nlohmann::json;

inline constexpr std::array<std::string_view, 3> write_policy_names
  = {"write_through", "write_through_selective", "write_back"};
inline constexpr std::array<std::string_view, 3> prefetch_policy_names
  = {"best_effort", "wait_complete", "timeout"};
inline constexpr std::array<std::string_view, 3> storage_action_names
  = {"attach", "detach", "release"};
inline constexpr std::array<std::string_view, 2> tier_names = {"device", "host"};
inline constexpr std::array<std::string_view, 2> page_order_names = {"newest_first", "ascending"};

// -- reading one value: returns what was expected, or an empty text on success -------------------

std::string read(const json& from, bool& to);
std::string read(const json& from, uint32_t& to);
std::string read(const json& from, int32_t& to);
std::string read(const json& from, uint64_t& to);
std::string read(const json& from, int64_t& to);
std::string read(const json& from, double& to);
std::string read(const json& from, std::string& to);
std::string read(const json& from, std::chrono::nanoseconds& to);
std::string read(const json& from, write_policy& to);
std::string read(const json& from, prefetch_policy& to);
std::string read(const json& from, storage_change::action& to);
std::string read(const json& from, cache_tier& to);
std::string read(const json& from, page_order& to);
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
void write(std::string& text, uint64_t value);
void write(std::string& text, int64_t value);
inline void write(std::string& text, uint32_t value) {
  write(text, uint64_t{value});
}
inline void write(std::string& text, int32_t value) {
  write(text, int64_t{value});
}
/// Text that is not UTF-8 becomes {"hex":...}.
void write(std::string& text, const std::string& value);
void write(std::string& text, std::chrono::nanoseconds value);
void write(std::string& text, write_policy value);
void write(std::string& text, prefetch_policy value);
void write(std::string& text, storage_change::action value);
void write(std::string& text, cache_tier value);
void write(std::string& text, page_order value);
void write(std::string& text, const eviction_policy_ptr& value);
void write(std::string& text, const token_buffer& value);
void write(std::string& text, const std::vector<int64_t>& value);
void write(std::string& text, const std::vector<page_list>& value);
void write(std::string& text, const std::vector<fetch_fact>& value);

/// Sixteen hexadecimal digits.
std::string to_hex(uint64_t value);

/// Parses the output of to_hex.
bool read_hex(std::string_view text, uint64_t& value);

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
