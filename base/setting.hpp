#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/eviction_policy.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace hicache {

/// Reference to a size in bytes, written as 64MiB.
struct size_value {
  uint64_t* bytes = nullptr;
};

/// Reference to a value chosen by name.
struct named_value {
  void* at = nullptr;
  /// Its name; empty if the value is absent.
  std::string (*name)(const void* at) = nullptr;
  /// Sets the value of that name.
  /// @returns invalid_argument with what was expected
  result<void> (*take)(void* at, std::string_view name) = nullptr;
};

/// Reference to the value of a setting; the type determines how it is written.
using setting_value = std::variant<bool*, uint16_t*, uint32_t*, uint64_t*, double*, size_value,
                                   duration*, std::string*, named_value, eviction_policy_ptr*>;

/// Valid range of a number, of bytes, or of a time in seconds; unrestricted if both are 0.
struct setting_range {
  double least = 0;
  double most = 0;

  constexpr bool is_given() const noexcept { return least < most; }

  constexpr bool has(double x) const noexcept { return !is_given() || (x >= least && x <= most); }
};

/// For ranges without an upper bound.
inline constexpr auto no_end = 1e18;

/// The numbers from `least` to `most`, in a table of settings.
constexpr setting_range within(double least, double most) {
  return {least, most};
}

/// A setting of a struct; source of its parsers, --help, reports and docs/configuration.md.
template <class Settings>
struct setting {
  /// Key in files; the flag is `--name`.
  std::string_view name;
  /// Type of the value in help: TOKENS, FILE.
  std::string_view type;
  setting_value (*at)(Settings&);
  /// Description in Markdown; links are relative to docs/.
  std::string_view meaning;
  setting_range range{};
};

/// `setting::at` for a data member, or for a member of a member.
template <auto... Members, class Settings>
setting_value at(Settings& settings) {
  return &(settings.*....*Members);
}

/// The same for a size in bytes.
template <auto... Members, class Settings>
setting_value bytes_at(Settings& settings) {
  return size_value{&(settings.*....*Members)};
}

/// The value as text; sizes in bytes.
std::string text_of(const setting_value& value);

/// The value as shown for a default: sizes and times with units, an absent text empty.
std::string shown(const setting_value& value);

/// The description with its range, in Markdown.
std::string meaning_of(std::string_view meaning, const setting_value& value,
                       const setting_range& range);

/// @returns the end of the sentence about a value out of its range; nothing if it is in range
std::optional<std::string> range_error(const setting_value& value, const setting_range& range);

/// Strips links and backticks from Markdown.
std::string plain(std::string_view markdown);

} // namespace hicache
