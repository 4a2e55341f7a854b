#pragma once

#include "base/setting.hpp"
#include "hicache/config.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hicache {

/// The stores that L3 can be, or be made of.
inline constexpr auto store_names
  = std::to_array<std::string_view>({"file", "disk", "hf3fs", "memory", "cluster", "node", "redis",
                                     "s3", "external", "dynamic", "mooncake", "nixl", "lmcache"});

/// The same, for sentences.
inline constexpr auto any_store
  = "file, disk, hf3fs, memory, cluster, node, redis, s3, external, dynamic, mooncake, nixl or "
    "lmcache";

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
  constexpr storage_setting(std::string_view key, std::string_view value_type,
                            std::string_view used_by, setting_value (*member)(storage_config&),
                            std::string_view text, std::string_view wanted = {},
                            setting_range valid = {}, key_place where = key_place::store)
    : setting{key, value_type, member, text, valid}, backends(used_by), expected(wanted),
      place(where) {}

  /// Backends that use it, for help.
  std::string_view backends;
  /// What is expected, for the message about a wrong value; empty if the type says it.
  std::string_view expected;
  key_place place;
};

std::span<const storage_setting> storage_settings();

/// What is expected of a value, for the message about a wrong one.
std::string expected_of(const storage_setting& setting);

} // namespace hicache
