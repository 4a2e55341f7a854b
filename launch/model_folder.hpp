#pragma once

#include "hicache/error.hpp"

#include <cstdint>
#include <functional>
#include <string>

namespace hicache {

/// How much of a model's weights an id is made of.
enum class weights_read : uint8_t {
  /// Some KiB of each tensor: seconds. Weights that were trained on differ there, weights with a
  /// few
  /// elements changed by hand need not.
  sample,
  /// Every byte.
  all,
};

/// An id for --model-id of the model in a folder, as inference engines load it: config.json, the
/// settings of a quantisation if there are any, and all safetensors: names, types, shapes and bytes
/// of the tensors. Where the folder lies and how the tensors are spread over files makes no
/// difference. Blocks.
/// @param progress Told now and then how many bytes of how many are read; may be empty.
/// @returns "sampled-sha256:" or "sha256:" and 64 hexadecimal digits; invalid_argument with a
/// sentence about a file that is missing, cannot be read or is not what its name says.
result<std::string> read_model_id(const std::string& folder, weights_read what,
                                  const std::function<void(uint64_t done, uint64_t total)>& progress
                                  = {});

} // namespace hicache
