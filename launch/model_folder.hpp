#pragma once

#include "hicache/error.hpp"

#include <cstdint>
#include <functional>
#include <string>

namespace hicache {

/// How much of the weights goes into a model id.
enum class weights_read : uint8_t {
  /// Some KiB of each tensor, in seconds. Detects training, but not every manual edit of elements.
  sample,
  /// Every byte.
  all,
};

/// Computes an id for --model-id from a model folder as inference engines load it: config.json, the
/// quantisation settings if any, and names, types, shapes and bytes of the tensors in all
/// safetensors files. Independent of the folder's location and of how tensors are distributed over
/// files. Blocks.
/// @param progress Called from time to time with bytes read and total bytes; may be empty.
/// @returns "sampled-sha256:" or "sha256:" and 64 hexadecimal digits; invalid_argument with a
/// sentence about a file that is missing, unreadable or malformed
result<std::string> read_model_id(const std::string& folder, weights_read what,
                                  const std::function<void(uint64_t done, uint64_t total)>& progress
                                  = {});

} // namespace hicache
