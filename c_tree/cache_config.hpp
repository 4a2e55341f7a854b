#pragma once

#include "hicache/error.hpp"
#include "runtime/rank_config.hpp"
#include "runtime/rank_place.hpp"

#include <cstdint>
#include <string_view>

namespace hicache {

/// What a configuration of hc_cache_open says.
struct cache_setup {
  /// Finished.
  rank_config config;
  rank_place place;
};

/// Reads a configuration: what the flags of a rank say, as a JSON object.
/// @returns invalid_argument with a sentence
result<cache_setup> read_cache_settings(std::string_view json);

} // namespace hicache
