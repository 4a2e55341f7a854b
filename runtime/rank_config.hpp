#pragma once

#include "cache/prefix/prefix_cache.hpp"
#include "gpu/device.hpp"
#include "hicache/config.hpp"
#include "hicache/error.hpp"

#include <CLI/CLI.hpp>

#include <string>

namespace hicache {

/// Reads a JSON text, or the JSON, TOML or YAML file behind an '@'.
/// @returns invalid_argument with a sentence that names the key or file and what was expected.
result<storage_config> parse_storage_config(const std::string& text);

/// The same text or file as the text of one JSON object, for another process to parse; keys are not
/// looked at. Empty stays empty.
/// @returns as parse_storage_config.
result<std::string> storage_config_json(const std::string& text);

/// Adds the flags that all ranks share, and --config FILE.
void add_rank_flags(CLI::App& app, rank_config& config);

} // namespace hicache
