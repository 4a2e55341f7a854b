#include "identity/model_folder.hpp"

#include "base/limits.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "cache/hash/model_digest.hpp"
#include "identity/content_record.hpp"
#include "identity/piece_digests.hpp"
#include "identity/tensor_file.hpp"

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace hicache {

namespace {

namespace fs = std::filesystem;

constexpr auto tensors_end = std::string_view{".safetensors"};
/// Weights that are hashed as whole files.
constexpr auto opaque_weights = std::to_array<std::string_view>({".bin", ".pt", ".pth", ".gguf"});
constexpr auto settings_end = std::string_view{".json"};
constexpr auto program_end = std::string_view{".py"};

/// Beginnings of the names of JSON files that decide nothing about the KV of given tokens.
constexpr auto text_files = std::to_array<std::string_view>(
  {"tokenizer", "vocab", "merges", "special_tokens_map", "added_tokens", "generation_config",
   "chat_template", "trainer_state", "all_results", "train_results", "eval_results"});

/// Ends of such names: where sharded tensors lie.
constexpr auto index_end = std::string_view{".index.json"};

constexpr auto settled_after = std::chrono::seconds{2};

enum class file_kind : uint8_t { tensors, opaque, settings, program, irrelevant };

file_kind kind_of(const fs::path& path) {
  const auto name = path.filename().string();
  const auto end = path.extension().string();
  if (end == tensors_end)
    return file_kind::tensors;
  if (std::ranges::find(opaque_weights, end) != opaque_weights.end())
    return file_kind::opaque;
  if (end == program_end)
    return file_kind::program;
  const auto is_text
    = std::ranges::any_of(text_files, [&](std::string_view x) { return name.starts_with(x); });
  if (end != settings_end || is_text || name.ends_with(index_end))
    return file_kind::irrelevant;
  return file_kind::settings;
}

int64_t nanoseconds(const timespec& time) {
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

/// Whether this is a link into the blobs of a Hugging Face cache: SNAPSHOT/file ->
/// ../../blobs/DIGEST.
bool is_addressed(const fs::path& path) {
  auto ignored = std::error_code{};
  const auto target = fs::read_symlink(path, ignored);
  return !ignored && target.parent_path().filename() == "blobs";
}

/// The files of a model and the state that they are in.
struct model_state {
  std::vector<std::pair<fs::path, file_kind>> files;
  std::string stamp;
  int64_t changed_ns = 0;
};

/// The newest change of a link on the way to a path.
int64_t links_changed(const fs::path& path) {
  auto newest = int64_t{0};
  auto so_far = fs::path{};
  for (const auto& part : fs::absolute(path)) {
    so_far /= part;
    struct stat status = {};
    if (::lstat(so_far.c_str(), &status) == 0 && S_ISLNK(status.st_mode))
      newest = std::max(newest, nanoseconds(status.st_ctim));
  }
  return newest;
}

result<void> add_file(const fs::path& path, model_state& state) {
  const auto kind = kind_of(path);
  if (kind == file_kind::irrelevant)
    return {};
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0)
    return bad_file(path, std::string{"cannot be read: "} + std::strerror(errno));
  if (S_ISDIR(status.st_mode))
    return {};
  state.files.emplace_back(path, kind);
  state.stamp += path.filename().string() + '\0';
  for (const auto number :
       {static_cast<int64_t>(status.st_dev), static_cast<int64_t>(status.st_ino),
        static_cast<int64_t>(status.st_size), nanoseconds(status.st_mtim),
        nanoseconds(status.st_ctim)})
    state.stamp += std::to_string(number) + ' ';
  if (!is_addressed(path)) {
    struct stat link = {};
    if (::lstat(path.c_str(), &link) == 0)
      state.changed_ns = std::max(state.changed_ns, nanoseconds(link.st_ctim));
    state.changed_ns = std::max(state.changed_ns, nanoseconds(status.st_ctim));
  }
  return {};
}

result<model_state> look_at(const fs::path& path) {
  auto state = model_state{};
  state.changed_ns = links_changed(path);
  auto trouble = std::error_code{};
  if (!fs::is_directory(path, trouble)) {
    if (kind_of(path) == file_kind::irrelevant)
      return bad_file(path, "is no folder of a model, nor a file of weights");
    HICACHE_TRY(add_file(path, state));
  } else {
    auto names = std::set<fs::path>{};
    for (auto it = fs::directory_iterator{path, trouble};
         !trouble && it != fs::directory_iterator{}; it.increment(trouble))
      names.insert(it->path());
    if (trouble)
      return bad_file(path, "cannot be listed: " + trouble.message());
    for (const auto& name : names)
      HICACHE_TRY(add_file(name, state));
  }
  state.stamp = digest_of_text(state.stamp);
  return state;
}

result<std::string> digest_of_file(const fs::path& path, file_kind kind) {
  const auto file = HICACHE_TRY(input_file::open(path));
  if (file.bytes() > limits::model_config_bytes)
    return bad_file(path, "has " + format_bytes(file.bytes()) + "; expected "
                            + format_bytes(limits::model_config_bytes) + " at most");
  auto text = std::string(file.bytes(), '\0');
  HICACHE_TRY(file.read(0, text.data(), text.size()));
  if (kind == file_kind::settings) {
    auto canonical = canonical_model_config(text);
    if (!canonical && path.filename() == "config.json")
      return bad_file(path, canonical.error().detail);
    text = std::move(canonical).value_or(std::move(text));
  }
  return digest_of_text(text);
}

/// The weights of a model, open for reading.
struct open_weights {
  std::vector<tensor_file> tensors;
  std::vector<input_file> opaque;
};

result<open_weights> open_all(const model_state& state) {
  auto weights = open_weights{};
  for (const auto& [path, kind] : state.files) {
    if (kind == file_kind::tensors) {
      auto file = HICACHE_TRY(open_tensor_file(path));
      weights.tensors.push_back(std::move(file));
    } else if (kind == file_kind::opaque) {
      auto file = HICACHE_TRY(input_file::open(path));
      weights.opaque.push_back(std::move(file));
    }
  }
  return weights;
}

/// The content of all weights. What is no safetensors file counts as one tensor with its name.
result<void> read_weights(const model_state& state,
                          const std::function<void(uint64_t, uint64_t)>& progress,
                          model_content& content) {
  const auto weights = HICACHE_TRY(open_all(state));
  auto ranges = std::vector<file_range>{};
  auto tensors = std::vector<hashed_tensor>{};
  for (const auto& file : weights.tensors)
    for (const auto& tensor : file.tensors) {
      ranges.push_back({&file.file, file.data + tensor.begin, tensor.end - tensor.begin});
      tensors.push_back({tensor, {}});
    }
  for (const auto& file : weights.opaque) {
    ranges.push_back({&file, 0, file.bytes()});
    tensors.push_back({{file.path().filename().string(), "file", {}, 0, file.bytes()}, {}});
  }
  auto digests = HICACHE_TRY(digests_of(ranges, progress));
  for (auto i = size_t{0}; i < tensors.size(); ++i) {
    tensors[i].bytes = std::move(digests[i]);
    content.bytes += ranges[i].bytes;
  }
  content.weights = "content:" + to_string(tensors_digest(std::move(tensors)));
  return {};
}

bool is_settled(const model_state& state, std::chrono::system_clock::time_point now) {
  return std::chrono::nanoseconds{state.changed_ns} + settled_after < now.time_since_epoch();
}

} // namespace

result<model_content> read_model_content(const std::string& path,
                                         const std::function<void(uint64_t, uint64_t)>& progress,
                                         std::chrono::system_clock::time_point now) {
  const auto before = HICACHE_TRY(look_at(path));
  const auto is_weights
    = [](const auto& x) { return x.second == file_kind::tensors || x.second == file_kind::opaque; };
  if (std::ranges::none_of(before.files, is_weights))
    return bad_file(path, "has no weights; expected *.safetensors, or files that end in .bin, .pt, "
                          ".pth or .gguf");
  if (auto known = remembered_content(path, before.stamp)) {
    known->changed_ns = before.changed_ns; // Links are no part of the stamp.
    return *known;
  }
  auto content = model_content{};
  content.changed_ns = before.changed_ns;
  for (const auto& [file, kind] : before.files)
    if (kind == file_kind::settings || kind == file_kind::program)
      content.files[file.filename().string()] = HICACHE_TRY(digest_of_file(file, kind));
  HICACHE_TRY(read_weights(before, progress, content));
  const auto after = HICACHE_TRY(look_at(path));
  if (after.stamp != before.stamp)
    return bad_file(path, "changed while it was read");
  if (is_settled(before, now))
    remember_content(path, before.stamp, content);
  return content;
}

std::string to_json(const model_content& content) {
  return nlohmann::json{{"weights", content.weights},
                        {"files", content.files},
                        {"bytes", content.bytes},
                        {"changed_ns", content.changed_ns}}
    .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

result<std::string>
read_model_id(const std::string& folder,
              const std::function<void(uint64_t done, uint64_t total)>& progress) {
  auto ignored = std::error_code{};
  if (!fs::exists(fs::path{folder} / "config.json", ignored))
    return bad_file(folder, "has no config.json; expected the folder of a model as engines load "
                            "it");
  const auto content = HICACHE_TRY(read_model_content(folder, progress));
  auto files = content.files;
  files.emplace("", content.weights);
  return "content:" + to_string(model_digest(files));
}

} // namespace hicache
