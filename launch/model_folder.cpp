#include "launch/model_folder.hpp"

#include "base/limits.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "cache/hash/model_digest.hpp"
#include "cache/hash/sha256.hpp"
#include "launch/tensor_file.hpp"

#include <algorithm>
#include <array>
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

result<std::vector<model_settings>> read_settings(const fs::path& folder) {
  auto all = std::vector<model_settings>{};
  for (const auto* name : settings_files) {
    const auto path = folder / name;
    auto ignored = std::error_code{};
    if (!fs::exists(path, ignored)) {
      if (all.empty())
        return bad_file(folder, std::string{"has no "} + name
                                  + "; expected the folder of a model as engines load it");
      continue;
    }
    auto file = HICACHE_TRY(input_file::open(path));
    if (file.bytes() > limits::model_config_bytes)
      return bad_file(path, "has " + format_bytes(file.bytes()) + "; expected settings of "
                              + format_bytes(limits::model_config_bytes) + " at most");
    auto text = std::string(file.bytes(), '\0');
    HICACHE_TRY(file.read(0, text.data(), text.size()));
    auto canonical = canonical_model_config(text);
    if (!canonical)
      return bad_file(path, canonical.error().detail);
    all.push_back({name, std::move(*canonical)});
  }
  return all;
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
      HICACHE_TRY(add(from.file, start, bytes));
    } else {
      for (const auto offset : {uint64_t{0}, bytes / 2})
        HICACHE_TRY(add(from.file, start + offset, sample_bytes));
    }
    done_ += bytes;
    return hash_.finish();
  }

private:
  result<void> add(const input_file& file, uint64_t offset, uint64_t bytes) {
    for (auto at = uint64_t{0}; at < bytes; at += piece_bytes) {
      const auto piece = std::min(piece_bytes, bytes - at);
      HICACHE_TRY(file.read(offset + at, buffer_.data(), piece));
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
  const auto settings = HICACHE_TRY(read_settings(folder));
  auto files = HICACHE_TRY(open_tensor_files(folder));
  auto total = uint64_t{0};
  for (const auto& each : files)
    total += each.file.bytes() - each.data;
  auto reader = tensor_reader{what, total, progress};
  auto tensors = std::vector<hashed_tensor>{};
  for (auto& file : files)
    for (auto& tensor : file.tensors) {
      auto digest = HICACHE_TRY(reader.hash(file, tensor));
      tensors.push_back({std::move(tensor), digest});
    }
  return (what == weights_read::all ? "sha256:" : "sampled-sha256:")
         + to_string(model_digest(settings, std::move(tensors)));
}

} // namespace hicache
