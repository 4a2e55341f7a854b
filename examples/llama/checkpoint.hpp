#pragma once

#include "examples/llama/model_config.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace llama {

enum class number_format : uint8_t { f32, f16, bf16 };

/// Bytes of one number.
uint32_t size_of(number_format format) noexcept;

/// Converts `count` numbers at `source`, which may be unaligned.
void to_floats(number_format format, const std::byte* source, size_t count, float* target) noexcept;

/// Converts back, rounding to nearest, ties to even.
void from_floats(number_format format, const float* source, size_t count,
                 std::byte* target) noexcept;

/// A tensor in a mapped file. Row-major.
struct tensor {
  number_format format = number_format::f32;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
};

/// Rows [first_row, first_row + rows) and columns [first_column, first_column + columns).
struct tensor_part {
  uint64_t first_row = 0;
  uint64_t rows = 0;
  uint64_t first_column = 0;
  uint64_t columns = 0;
};

/// The tensors of a model, in one or more safetensors files. The files stay mapped during the
/// object's lifetime and must not change meanwhile.
class checkpoint {
public:
  /// Opens FOLDER/model.safetensors.index.json and the files it names, or FOLDER/model.safetensors.
  /// @returns invalid_argument with a sentence that names the file. Even for invalid files, no
  /// tensor reaches beyond its file.
  static result<checkpoint> open(const std::filesystem::path& folder);

  /// Part of a matrix as floats.
  /// @param rows, columns The shape of the whole matrix. 1 row: a vector.
  /// @returns invalid_argument if there is no such tensor, or if it has another shape
  /// @pre the part lies within the matrix
  result<std::vector<float>> read(const std::string& name, uint64_t rows, uint64_t columns,
                                  const tensor_part& part) const;

private:
  struct mapped_file;

  result<void> add_file(const std::filesystem::path& path);

  std::vector<std::shared_ptr<const mapped_file>> files_;
  /// Ordered by name.
  std::map<std::string, tensor> tensors_;
};

} // namespace llama
