#pragma once

#include "cache/prefix/prefix_cache.hpp"
#include "gpu/device.hpp"
#include "hicache/config.hpp"
#include "hicache/error.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hicache {

/// The part of rank_config::finish() that validates what identifies pages.
result<void> finish_identity(rank_config& config);

/// @pre config.finish(ranks) succeeded, here and below
tree_options tree_options_of(const rank_config& config, uint32_t ranks);

copy_options copy_options_of(const rank_config& config);

/// A sentence for the log if L2 keeps the objects of L3 in many small pieces, with which L3 is much
/// slower than with another layout (bench/step_layouts.cpp measures all of them).
std::optional<std::string> scattered_objects(const rank_config& config, uint32_t ranks);

/// Names and values of the settings common to all ranks, in the order of rank_settings(): for the
/// report and for comparing ranks.
std::vector<std::pair<std::string, std::string>> shared_settings(const rank_config& config);

/// @returns the policy of that name, or invalid_argument with what was expected
result<prefetch_policy> parse_prefetch_policy(std::string_view name);

/// @relates prefetch_policy
const char* to_string(prefetch_policy policy) noexcept;

/// @relates page_transport
const char* to_string(page_transport transport) noexcept;

/// Adds the flags common to all ranks, and --config FILE.
void add_rank_flags(CLI::App& app, rank_config& config);

} // namespace hicache
