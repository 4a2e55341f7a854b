#pragma once

#include "hicache/error.hpp"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

// The facts that page names are made of: a JSON object of parts. The Python package collects them
// from engines (clients/python/hicache/identity.py) and keeps them at the node.
namespace hicache {

/// The namespace in which the facts are kept, as pages; the same in the Python package.
inline constexpr auto facts_namespace = std::string_view{"hicache identities"};

/// @returns malformed_message if the text is no JSON object of a bounded size
result<nlohmann::json> parse_facts(std::string_view text);

/// The facts of a model's folder: the same part "model" as of an engine that has loaded it, with
/// the configuration as the file has it, before any override.
/// @returns invalid_argument with a sentence about a file; see read_model_content
result<nlohmann::json> facts_of_folder(const std::string& folder);

/// Facts in words, a line each: "PART.NAME: VALUE".
std::vector<std::string> facts_in_words(const nlohmann::json& facts);

/// In which facts two differ, a line each; empty if pages are shared.
/// @param common_only Compare what both have only: one of them is a folder.
std::vector<std::string> fact_differences(const nlohmann::json& one, const nlohmann::json& other,
                                          bool common_only);

} // namespace hicache
