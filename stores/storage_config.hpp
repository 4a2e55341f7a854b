#pragma once

#include "hicache/config.hpp"
#include "hicache/error.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace hicache {

/// Parses a JSON text, or the JSON, TOML or YAML file behind an '@'.
/// @param backend The store, unless it is made of tiers. Keys that hicache does not know are kept
/// for the stores of others (external_config::options).
/// @returns invalid_argument with a sentence that names the key or file and what was expected
result<storage_config> parse_storage_config(const std::string& text, std::string_view backend = {});

/// Whether a store is in another process, which knows keys of its own.
constexpr bool is_external_store(std::string_view backend) {
  return backend == "external" || backend == "dynamic" || backend == "mooncake" || backend == "nixl"
         || backend == "lmcache";
}

/// What a store cannot do without.
struct missing_setting {
  /// "a folder"
  std::string_view what;
  /// Keys to give, as JSON in quotes.
  std::string_view example;
};

/// @returns nothing if the store has what it needs
std::optional<missing_setting> missing_setting_of(std::string_view backend,
                                                  const storage_config& storage);

/// Whether the stores of a configuration need no rank, and nothing is missing.
/// @param backend One of them, or "tiered".
/// @returns invalid_argument with a sentence
result<void> check_rankless_stores(std::string_view backend, const storage_config& config);

/// Parses the settings of a store that needs no rank, and checks that nothing is missing.
/// @returns invalid_argument with a sentence
result<storage_config> parse_store(std::string_view backend, const std::string& extra_config);

/// Converts the same text or file to one JSON object for another process to parse. Keys are not
/// checked. Empty stays empty.
/// @returns as parse_storage_config
result<std::string> storage_config_json(const std::string& text);

} // namespace hicache
