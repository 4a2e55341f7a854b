#pragma once

#include "runtime/rank_config.hpp"
#include "runtime/setting.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace hicache {

/// Who needs the same value of a setting.
enum class equal_on : uint8_t {
  nobody,
  /// The ranks of an instance; they compare it when they start.
  ranks,
  /// These, and all instances that are to find each other's pages: it is part of their names.
  sharers,
};

struct rank_setting : setting<rank_config> {
  equal_on equal = equal_on::nobody;
};

/// The settings of a rank, but for those that say where it meets others (add_place_flags,
/// add_tls_flags).
std::span<const rank_setting> rank_settings();

/// A key of --hicache-storage-backend-extra-config.
struct storage_setting : setting<storage_config> {
  /// Those that use it, for people.
  std::string_view backends;
  /// What a wrong value is told.
  std::string_view expected;
};

std::span<const storage_setting> storage_settings();

} // namespace hicache
