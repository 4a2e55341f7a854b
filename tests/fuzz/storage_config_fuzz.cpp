// Settings of L3 as people write them: a first byte of 't' or 'y' makes the rest a TOML or YAML
// file, any other input is JSON.

#include "base/check.hpp"
#include "stores/storage_config.hpp"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

namespace {

using namespace hicache;

/// A folder for the files, gone at the end.
class scratch_folder {
public:
  scratch_folder()
    : path_(std::filesystem::temp_directory_path()
            / ("storage_config_fuzz-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(path_);
  }

  ~scratch_folder() { std::filesystem::remove_all(path_); }

  std::string write(const char* name, const std::string& text) const {
    std::ofstream{path_ / name, std::ios::binary} << text;
    return "@" + (path_ / name).string();
  }

private:
  std::filesystem::path path_;
};

bool equal(const storage_config& a, const storage_config& b) {
  const auto values = [](const storage_config& x) {
    return std::tie(x.prefetch_threshold, x.prefetch_timeout_base, x.prefetch_timeout_per_ki_token,
                    x.prefetch_timeout_max, x.prefetch_share, x.path, x.max_bytes,
                    x.force_remote_reads, x.tp_lcm_size, x.threads);
  };
  return values(a) == values(b);
}

void check(const std::string& text) {
  const auto config = parse_storage_config(text);
  const auto json = storage_config_json(text);
  if (!config) {
    HICACHE_CHECK(config.error().code == ec::invalid_argument && !config.error().detail.empty());
    return;
  }
  // As it travels to other processes, it says the same.
  HICACHE_CHECK(json);
  const auto again = parse_storage_config(*json);
  HICACHE_CHECK(again && equal(*again, *config));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto folder = scratch_folder{};
  const auto text = std::string{reinterpret_cast<const char*>(data), size};
  if (text.starts_with('t'))
    check(folder.write("x.toml", text.substr(1)));
  else if (text.starts_with('y'))
    check(folder.write("x.yaml", text.substr(1)));
  else if (!text.starts_with('@'))
    check(text);
  return 0;
}
