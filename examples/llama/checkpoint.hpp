#pragma once

#include "examples/llama/model_config.hpp"
#include "examples/llama/number_format.hpp"
#include "launch/tensor_file.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

/// Parses a --dtype that this engine supports.
/// @returns invalid_argument with the allowed names.
result<number_format> parse_kv_format(std::string_view dtype);

/// Rows [first_row, first_row + rows) and columns [first_column, first_column + columns).
struct tensor_part {
  uint64_t first_row = 0;
  uint64_t rows = 0;
  uint64_t first_column = 0;
  uint64_t columns = 0;
};

/// The tensors of a model, in one or more safetensors files, which must not change during the
/// object's lifetime.
class checkpoint {
public:
  /// @returns invalid_argument with a sentence that names the file.
  static result<checkpoint> open(const std::filesystem::path& folder);

  /// Appends part of a matrix as floats.
  /// @param rows, columns The shape of the whole matrix. 1 row: a vector.
  /// @returns invalid_argument if there is no such tensor, or if it has another shape or format
  /// @pre the part lies within the matrix
  result<void> append(std::vector<float>& target, const std::string& name, uint64_t rows,
                      uint64_t columns, const tensor_part& part) const;

private:
  struct place {
    const hicache::tensor_file* file;
    const hicache::stored_tensor* tensor;
  };

  std::vector<hicache::tensor_file> files_;
  std::map<std::string, place> tensors_;
};

} // namespace llama
