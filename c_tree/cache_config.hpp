#pragma once

#include "hicache/error.hpp"
#include "runtime/rank_config.hpp"
#include "runtime/rank_place.hpp"

#include <string_view>

namespace hicache {

/// The configuration of hc_cache_open.
struct cache_setup {
  /// After rank_config::finish().
  rank_config config;
  rank_place place;
};

/// Parses a configuration: the flags of a rank as a JSON object.
/// @returns invalid_argument with a sentence
result<cache_setup> read_cache_settings(std::string_view json);

} // namespace hicache
