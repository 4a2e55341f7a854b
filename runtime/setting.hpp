#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "hicache/eviction_policy.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace hicache {

/// Where a size in bytes lies, which is written as 64MiB.
struct size_value {
  uint64_t* bytes = nullptr;
};

/// Where a value lies that is chosen by name.
struct named_value {
  void* at = nullptr;
  /// Its name; empty if it is absent.
  std::string (*name)(const void* at) = nullptr;
  /// Makes it the value of that name.
  /// @returns invalid_argument with what was expected
  result<void> (*take)(void* at, std::string_view name) = nullptr;
};

/// Where the value of a setting lies; its type says how it is written.
using setting_value = std::variant<bool*, uint16_t*, uint32_t*, uint64_t*, double*, size_value,
                                   duration*, std::string*, named_value, eviction_policy_ptr*>;

/// What a number may be; anything if both are 0.
struct setting_range {
  double least = 0;
  double most = 0;

  constexpr bool is_given() const noexcept { return least < most; }
};

/// One setting of a struct, from which parsers, --help, reports and the tables of
/// docs/configuration.md come.
template <class Settings>
struct setting {
  /// As a key; the flag has two dashes before it.
  std::string_view name;
  /// What the value is, for people: TOKENS, FILE.
  std::string_view type;
  setting_value (*at)(Settings&);
  /// What it means, in Markdown whose links start from docs/.
  std::string_view meaning;
  setting_range range{};
};

/// `setting::at` of a member.
template <auto Member, class Settings>
setting_value at(Settings& settings) {
  return &(settings.*Member);
}

/// The value as text. Sizes are numbers of bytes.
std::string text_of(const setting_value& value);

/// The value as it is shown for a default: sizes and times with their units, an absent text empty.
std::string shown(const setting_value& value);

/// The meaning with its range, in Markdown.
std::string meaning_of(std::string_view meaning, const setting_range& range);

/// Markdown without links and backticks.
std::string plain(std::string_view markdown);

/// Adds the flag of a setting, whose value lies there.
void add_flag(CLI::App& app, std::string_view name, std::string_view type,
              const setting_value& value, const setting_range& range, const std::string& help);

/// Adds the flags of settings.
template <class Settings>
void add_flag(CLI::App& app, const setting<Settings>& what, Settings& settings) {
  add_flag(app, what.name, what.type, what.at(settings), what.range,
           plain(meaning_of(what.meaning, what.range)));
}

/// Adds a flag that takes a size such as 64MiB.
void add_bytes_flag(CLI::App& app, const std::string& name, uint64_t& value,
                    const std::string& help);

/// Adds a flag that takes a time such as 250ms.
void add_duration_flag(CLI::App& app, const std::string& name, duration& value,
                       const std::string& help);

} // namespace hicache
