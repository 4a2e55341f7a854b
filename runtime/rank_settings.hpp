#pragma once

#include "base/setting.hpp"
#include "hicache/config.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace hicache {

/// Scope within which a setting must have the same value.
enum class equal_on : uint8_t {
  nobody,
  /// The ranks of an instance, which compare it at startup.
  ranks,
  /// In addition all instances that share pages: the setting is part of the page names.
  sharers,
};

/// Reference to a log level, chosen by name.
setting_value by_name(log_level& level);

struct rank_setting : setting<rank_config> {
  constexpr rank_setting(std::string_view key, std::string_view value_type,
                         setting_value (*member)(rank_config&), equal_on scope,
                         std::string_view text, setting_range valid = {})
    : setting{key, value_type, member, text, valid}, equal(scope) {}

  equal_on equal;
};

/// The settings of a rank, except the flags of add_place_flags and add_tls_flags.
std::span<const rank_setting> rank_settings();

} // namespace hicache
