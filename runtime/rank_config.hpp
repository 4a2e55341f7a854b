#pragma once

#include "cache/prefix/prefix_cache.hpp"
#include "gpu/device.hpp"
#include "hicache/config.hpp"
#include "hicache/error.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hicache {

/// Reads a JSON text, or the JSON, TOML or YAML file behind an '@'.
/// @returns invalid_argument with a sentence that names the key or file and what was expected.
result<storage_config> parse_storage_config(const std::string& text);

/// The same text or file as the text of one JSON object, for another process to parse; keys are not
/// looked at. Empty stays empty.
/// @returns as parse_storage_config.
result<std::string> storage_config_json(const std::string& text);

/// The part of rank_config::finish() that concerns the names of pages.
result<void> finish_identity(rank_config& config);

/// @pre config.finish(ranks) succeeded, here and below
tree_options tree_options_of(const rank_config& config, uint32_t ranks);

copy_options copy_options_of(const rank_config& config);

/// The settings that ranks have in common, with their values as texts, in the order of
/// rank_settings(): for the report and for comparing ranks.
std::vector<std::pair<std::string, std::string>> shared_settings(const rank_config& config);

/// The policy of that name.
/// @returns invalid_argument with what was expected
result<prefetch_policy> parse_prefetch_policy(std::string_view name);

/// @relates prefetch_policy
const char* to_string(prefetch_policy policy) noexcept;

/// @relates page_transport
const char* to_string(page_transport transport) noexcept;

/// Adds the flags that all ranks share, and --config FILE.
void add_rank_flags(CLI::App& app, rank_config& config);

} // namespace hicache
