#pragma once

#include "base/setting.hpp"
#include "hicache/config.hpp"

#include <cstdint>
#include <span>

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
  equal_on equal = equal_on::nobody;
};

/// The settings of a rank, except the flags of add_place_flags and add_tls_flags.
std::span<const rank_setting> rank_settings();

} // namespace hicache
