#pragma once

#include "hicache/error.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace hicache {

/// What of a model's folder, or of a single file of weights, decides the bytes of its KV. By
/// content: neither place, owner nor time of a copy counts, nor how tensors are spread over files.
/// The same for the folder of a draft model or of an adapter.
struct model_content {
  /// "content:" and 64 hexadecimal digits: names, types, shapes and all bytes of the tensors in
  /// safetensors files; of other formats (.bin, .pt, .pth, .gguf) names and bytes of whole files.
  std::string weights;
  /// Digests of the other files that decide what is computed, by their names: settings in JSON
  /// (canonical, without fields that name an origin), programs (.py). Without what is for text
  /// alone, such as tokenizers and chat templates.
  std::map<std::string, std::string> files;
  /// Of the weights.
  uint64_t bytes = 0;
  /// When any of these files, or a link on the way to them, changed last: nanoseconds since 1970
  /// by the file system's clock, which programs cannot set back. Files of a Hugging Face cache are
  /// left out: their names are digests of their content.
  int64_t changed_ns = 0;

  friend bool operator==(const model_content&, const model_content&) = default;
};

/// Reads all bytes of a model, once: the result is remembered in
/// ${XDG_CACHE_HOME:-~/.cache}/hicache/models, and taken from there as long as no file was
/// replaced, changed or touched. Blocks.
/// @param path A folder, or a file of weights.
/// @param progress Called from time to time with bytes read and total bytes; may be empty.
/// @param now What changed within the last two seconds is not remembered, because it may change
/// again without a difference that can be seen: file systems' clocks tick coarsely.
/// @returns invalid_argument with a sentence about a file that is missing, unreadable, malformed,
/// or changed meanwhile
result<model_content>
read_model_content(const std::string& path,
                   const std::function<void(uint64_t, uint64_t)>& progress = {},
                   std::chrono::system_clock::time_point now = std::chrono::system_clock::now());

/// The same as a JSON object, with the names of the fields.
std::string to_json(const model_content& content);

/// An id for --model-id: one digest of all that read_model_content finds in a folder that has a
/// config.json.
/// @returns "content:" and 64 hexadecimal digits, or an error as of read_model_content
result<std::string> read_model_id(const std::string& folder,
                                  const std::function<void(uint64_t, uint64_t)>& progress = {});

} // namespace hicache
