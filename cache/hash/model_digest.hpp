#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// Identifies a model by the content of its files, without reading files.
namespace hicache {

/// A tensor of a safetensors file.
struct stored_tensor {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  /// Begin and end of its bytes, relative to the end of the header.
  uint64_t begin = 0;
  uint64_t end = 0;

  friend bool operator==(const stored_tensor&, const stored_tensor&) = default;
};

/// Parses the header of a safetensors file, a JSON text.
/// @param data_bytes Bytes after the header in the file.
/// @returns the tensors in the order of their bytes; malformed_message, worded to follow the file's
/// name, unless they cover the data without gap or overlap.
result<std::vector<stored_tensor>> parse_safetensors(std::string_view header, uint64_t data_bytes);

/// Canonical form of a model's settings: keys sorted, without fields that name the origin of the
/// copy or the program that wrote it.
/// @returns malformed_message, worded to follow the file's name.
result<std::string> canonical_model_config(std::string_view text);

struct hashed_tensor {
  stored_tensor tensor;
  /// Digest of its bytes.
  std::string bytes;
};

/// One digest for all. Independent of how the tensors are spread over files.
page_key tensors_digest(std::vector<hashed_tensor> tensors);

/// One digest for a model.
/// @param parts Digests of its weights and files, by name.
page_key model_digest(const std::map<std::string, std::string>& parts);

} // namespace hicache
