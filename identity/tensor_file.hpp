#pragma once

#include "base/unique_fd.hpp"
#include "cache/hash/model_digest.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace hicache {

/// @returns invalid_argument with the sentence "PATH WHAT"
tl::unexpected<error> bad_file(const std::filesystem::path& path, const std::string& what);

/// A regular file, open for reading. Errors are invalid_argument with a sentence that names it.
class input_file {
public:
  static result<input_file> open(const std::filesystem::path& path);

  const std::filesystem::path& path() const noexcept { return path_; }

  /// Its size when it was opened.
  uint64_t bytes() const noexcept { return bytes_; }

  /// Reads exactly `count` bytes.
  result<void> read(uint64_t offset, void* target, uint64_t count) const;

private:
  input_file(std::filesystem::path path, unique_fd fd);

  std::filesystem::path path_;
  unique_fd fd_;
  uint64_t bytes_ = 0;
};

/// A safetensors file.
struct tensor_file {
  input_file file;
  /// Offset of the tensors' bytes, which follow the header.
  uint64_t data = 0;
  /// No place reaches beyond the file.
  std::vector<stored_tensor> tensors;
};

/// @returns invalid_argument with a sentence about a file that is unreadable or malformed
result<tensor_file> open_tensor_file(const std::filesystem::path& path);

/// Opens all safetensors files of a model's folder, by name.
/// @returns invalid_argument with a sentence about a file that is missing, unreadable or malformed
result<std::vector<tensor_file>> open_tensor_files(const std::filesystem::path& folder);

} // namespace hicache
