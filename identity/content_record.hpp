#pragma once

#include "identity/model_folder.hpp"

#include <filesystem>
#include <optional>
#include <string>

// Remembers the content of models, in a file for each folder or file of weights.
namespace hicache {

/// What was remembered about a path.
/// @param stamp Identifies the state of its files; of another state nothing is known.
std::optional<model_content> remembered_content(const std::filesystem::path& path,
                                                const std::string& stamp);

/// Remembers it, replacing what was remembered. Does nothing where no file can be written: the
/// content is read again the next time.
void remember_content(const std::filesystem::path& path, const std::string& stamp,
                      const model_content& content);

} // namespace hicache
