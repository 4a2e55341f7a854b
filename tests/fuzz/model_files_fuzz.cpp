// A model's files, as a download may leave them: a first byte of 'c' makes the rest its settings,
// any other one makes it a safetensors file, length and header and tensors.

#include "base/check.hpp"
#include "cache/hash/model_digest.hpp"
#include "identity/model_folder.hpp"

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace {

using namespace hicache;
using json = nlohmann::json;

/// A folder with the model of the moment, gone at the end.
class model_files {
public:
  model_files()
    : path_(std::filesystem::temp_directory_path()
            / ("model_files_fuzz-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(path_);
    write("config.json", "{}");
  }

  ~model_files() { std::filesystem::remove_all(path_); }

  std::string path() const { return path_.string(); }

  void write(const char* name, std::string_view content) const {
    std::ofstream{path_ / name, std::ios::binary} << content;
  }

private:
  std::filesystem::path path_;
};

/// A safetensors header that says what these tensors are.
std::string header_of(const std::vector<stored_tensor>& tensors) {
  auto header = json::object();
  for (const auto& x : tensors)
    header[x.name] = {{"dtype", x.dtype}, {"shape", x.shape}, {"data_offsets", {x.begin, x.end}}};
  return header.dump();
}

void check_header(std::string_view header, uint64_t data_bytes) {
  const auto tensors = parse_safetensors(header, data_bytes);
  if (!tensors) {
    HICACHE_CHECK(tensors.error().code == ec::malformed_message && !tensors.error().detail.empty());
    return;
  }
  auto covered = uint64_t{0};
  for (const auto& tensor : *tensors) {
    HICACHE_CHECK(tensor.begin == covered && tensor.end >= tensor.begin);
    covered = tensor.end;
  }
  HICACHE_CHECK(covered == data_bytes);
  HICACHE_CHECK(parse_safetensors(header_of(*tensors), data_bytes) == *tensors);
}

void check_file(const model_files& folder, std::string_view content) {
  folder.write("model.safetensors", content);
  const auto id = read_model_id(folder.path());
  if (id)
    HICACHE_CHECK(read_model_id(folder.path()) == id);
  else
    HICACHE_CHECK(id.error().code == ec::invalid_argument);
}

void check_settings(std::string_view text) {
  const auto settings = canonical_model_config(text);
  if (settings)
    HICACHE_CHECK(canonical_model_config(*settings) == settings);
  else
    HICACHE_CHECK(settings.error().code == ec::malformed_message);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto folder = model_files{};
  const auto input = std::string_view{reinterpret_cast<const char*>(data), size};
  if (input.starts_with('c')) {
    check_settings(input.substr(1));
    return 0;
  }
  check_file(folder, input);
  // The header alone, too: most changes leave a length that does not fit.
  if (const auto end = input.rfind('}'); end != input.npos && input.size() > 8)
    check_header(input.substr(8, end - 7), input.size() - end - 1);
  return 0;
}
