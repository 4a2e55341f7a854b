#pragma once

#include "runtime/rank_config.hpp"
#include "runtime/setting.hpp"

#include <array>
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
  equal_on equal = equal_on::nobody;
};

/// The settings of a rank, except the flags of add_place_flags and add_tls_flags.
std::span<const rank_setting> rank_settings();

/// The stores that L3 can be, or be made of.
inline constexpr auto store_names
  = std::to_array<std::string_view>({"file", "disk", "memory", "cluster", "node", "redis", "s3",
                                     "external", "dynamic", "mooncake", "nixl"});

/// The same, for sentences.
inline constexpr auto any_store
  = "file, disk, memory, cluster, node, redis, s3, external, dynamic, mooncake or nixl";

/// Where a key of --hicache-storage-backend-extra-config may stand.
enum class key_place : uint8_t {
  /// At the top: it is about L3 as a whole.
  top,
  /// At the top, or in a tier: it is about one store.
  store,
  /// In a tier.
  tier,
};

/// A key of --hicache-storage-backend-extra-config.
struct storage_setting : setting<storage_config> {
  /// Backends that use it, for help.
  std::string_view backends;
  /// What is expected, for the message about a wrong value.
  std::string_view expected;
  key_place place = key_place::top;
};

std::span<const storage_setting> storage_settings();

} // namespace hicache
