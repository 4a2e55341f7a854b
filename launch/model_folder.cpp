#include "launch/model_folder.hpp"

#include "base/limits.hpp"
#include "base/unique_fd.hpp"
#include "base/units.hpp"
#include "cache/hash/model_digest.hpp"
#include "cache/hash/sha256.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

namespace hicache {

namespace {

namespace fs = std::filesystem;

/// Files that define how weights are interpreted. The first is mandatory.
constexpr auto settings_files
  = std::array{"config.json", "hf_quant_config.json", "quant_config.json", "quantize_config.json"};

/// Bytes of a tensor read at once.
constexpr auto piece_bytes = uint64_t{1} << 20;

/// Bytes sampled at the start and in the middle of a tensor. Small, because large models have
/// 100,000 tensors, and each read may go to remote storage.
constexpr auto sample_bytes = uint64_t{4} << 10;

tl::unexpected<error> bad(const fs::path& path, const std::string& what) {
  return fail(ec::invalid_argument, path.string() + " " + what);
}

/// A regular file, open for reading.
class input_file {
public:
  static result<input_file> open(const fs::path& path) {
    // Non-blocking, because opening a pipe would wait for its writer.
    auto file
      = input_file{path, unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)}};
    struct stat status = {};
    if (!file.fd_ || ::fstat(file.fd_.get(), &status) != 0)
      return bad(path, std::string{"cannot be read: "} + std::strerror(errno));
    if (!S_ISREG(status.st_mode))
      return bad(path, "is no file");
    file.bytes_ = static_cast<uint64_t>(status.st_size);
    return file;
  }

  const fs::path& path() const noexcept { return path_; }

  uint64_t bytes() const noexcept { return bytes_; }

  /// Reads exactly `count` bytes.
  result<void> read(uint64_t offset, void* target, uint64_t count) const {
    auto* next = static_cast<char*>(target);
    while (count > 0) {
      const auto got = ::pread(fd_.get(), next, count, static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR)
        continue;
      if (got <= 0)
        return bad(path_, got < 0 ? std::string{"cannot be read: "} + std::strerror(errno)
                                  : "became shorter while it was read");
      next += got;
      offset += static_cast<uint64_t>(got);
      count -= static_cast<uint64_t>(got);
    }
    return {};
  }

private:
  input_file(fs::path path, unique_fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  fs::path path_;
  unique_fd fd_;
  uint64_t bytes_ = 0;
};

/// A safetensors file with its parsed header; the tensors follow the header.
struct tensor_file {
  input_file file;
  uint64_t data = 0;
  std::vector<stored_tensor> tensors;
};

result<tensor_file> open_tensors(const fs::path& path) {
  auto file = input_file::open(path);
  if (!file)
    return tl::unexpected{file.error()};
  auto length = std::array<uint8_t, 8>{};
  if (file->bytes() < length.size())
    return bad(path, "is too short for safetensors");
  if (auto got = file->read(0, length.data(), length.size()); !got)
    return tl::unexpected{got.error()};
  auto header_bytes = uint64_t{0};
  for (auto i = size_t{0}; i < length.size(); ++i)
    header_bytes |= uint64_t{length[i]} << (8 * i);
  if (header_bytes > limits::safetensors_header_bytes
      || header_bytes > file->bytes() - length.size())
    return bad(path, "is no safetensors file: its first 8 bytes say that a header of "
                       + std::to_string(header_bytes) + " bytes follows");
  auto header = std::string(header_bytes, '\0');
  if (auto got = file->read(length.size(), header.data(), header.size()); !got)
    return tl::unexpected{got.error()};
  const auto data = length.size() + header_bytes;
  auto tensors = parse_safetensors(header, file->bytes() - data);
  if (!tensors)
    return bad(path, tensors.error().detail);
  return tensor_file{std::move(*file), data, std::move(*tensors)};
}

result<std::vector<model_settings>> read_settings(const fs::path& folder) {
  auto all = std::vector<model_settings>{};
  for (const auto* name : settings_files) {
    const auto path = folder / name;
    auto ignored = std::error_code{};
    if (!fs::exists(path, ignored)) {
      if (all.empty())
        return bad(folder, std::string{"has no "} + name
                             + "; expected the folder of a model as engines load it");
      continue;
    }
    auto file = input_file::open(path);
    if (!file)
      return tl::unexpected{file.error()};
    if (file->bytes() > limits::model_config_bytes)
      return bad(path, "has " + format_bytes(file->bytes()) + "; expected settings of "
                         + format_bytes(limits::model_config_bytes) + " at most");
    auto text = std::string(file->bytes(), '\0');
    if (auto got = file->read(0, text.data(), text.size()); !got)
      return tl::unexpected{got.error()};
    auto canonical = canonical_model_config(text);
    if (!canonical)
      return bad(path, canonical.error().detail);
    all.push_back({name, std::move(*canonical)});
  }
  return all;
}

result<std::vector<fs::path>> tensor_paths(const fs::path& folder) {
  auto paths = std::vector<fs::path>{};
  auto trouble = std::error_code{};
  for (auto it = fs::directory_iterator{folder, trouble};
       !trouble && it != fs::directory_iterator{}; it.increment(trouble))
    if (it->path().extension() == ".safetensors")
      paths.push_back(it->path());
  if (trouble)
    return bad(folder, "cannot be listed: " + trouble.message());
  if (paths.empty())
    return bad(folder, "has no *.safetensors; expected the weights of a model in that format");
  std::ranges::sort(paths);
  return paths;
}

/// Hashes tensors and reports progress.
class tensor_reader {
public:
  tensor_reader(weights_read what, uint64_t total,
                const std::function<void(uint64_t, uint64_t)>& progress)
    : what_(what), total_(total), progress_(progress), buffer_(piece_bytes) {}

  result<page_key> hash(const tensor_file& from, const stored_tensor& tensor) {
    const auto bytes = tensor.end - tensor.begin;
    const auto start = from.data + tensor.begin;
    if (what_ == weights_read::all || bytes <= 2 * sample_bytes) {
      if (auto added = add(from.file, start, bytes); !added)
        return tl::unexpected{added.error()};
    } else {
      for (const auto offset : {uint64_t{0}, bytes / 2})
        if (auto added = add(from.file, start + offset, sample_bytes); !added)
          return tl::unexpected{added.error()};
    }
    done_ += bytes;
    return hash_.finish();
  }

private:
  result<void> add(const input_file& file, uint64_t offset, uint64_t bytes) {
    for (auto at = uint64_t{0}; at < bytes; at += piece_bytes) {
      const auto piece = std::min(piece_bytes, bytes - at);
      if (auto got = file.read(offset + at, buffer_.data(), piece); !got)
        return got;
      hash_.add(buffer_.data(), piece);
      if (progress_)
        progress_(done_ + at + piece, total_);
    }
    return {};
  }

  weights_read what_;
  uint64_t total_;
  const std::function<void(uint64_t, uint64_t)>& progress_;
  std::vector<char> buffer_;
  sha256 hash_;
  uint64_t done_ = 0;
};

} // namespace

result<std::string>
read_model_id(const std::string& folder, weights_read what,
              const std::function<void(uint64_t done, uint64_t total)>& progress) {
  const auto settings = read_settings(folder);
  if (!settings)
    return tl::unexpected{settings.error()};
  const auto paths = tensor_paths(folder);
  if (!paths)
    return tl::unexpected{paths.error()};
  auto files = std::vector<tensor_file>{};
  auto total = uint64_t{0};
  for (const auto& path : *paths) { // All headers first, so that broken files are reported at once.
    auto file = open_tensors(path);
    if (!file)
      return tl::unexpected{file.error()};
    total += file->file.bytes() - file->data;
    files.push_back(std::move(*file));
  }
  auto reader = tensor_reader{what, total, progress};
  auto tensors = std::vector<hashed_tensor>{};
  for (auto& file : files)
    for (auto& tensor : file.tensors) {
      auto digest = reader.hash(file, tensor);
      if (!digest)
        return tl::unexpected{digest.error()};
      tensors.push_back({std::move(tensor), *digest});
    }
  return (what == weights_read::all ? "sha256:" : "sampled-sha256:")
         + to_string(model_digest(*settings, std::move(tensors)));
}

} // namespace hicache
