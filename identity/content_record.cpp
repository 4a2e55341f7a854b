#include "identity/content_record.hpp"

#include "base/json_fields.hpp"
#include "base/unique_fd.hpp"
#include "identity/piece_digests.hpp"

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>

namespace hicache {

namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

/// Digests of a few hundred files at most.
constexpr auto record_bytes_max = size_t{1} << 20;
constexpr auto record_levels_max = 3;

/// Where the records are; nothing without a home.
std::optional<fs::path> records_folder() {
  const auto* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/')
    return fs::path{cache} / "hicache" / "models";
  const auto* home = std::getenv("HOME");
  if (home == nullptr || *home != '/')
    return std::nullopt;
  return fs::path{home} / ".cache" / "hicache" / "models";
}

std::optional<fs::path> record_of(const fs::path& path) {
  auto ignored = std::error_code{};
  const auto folder = records_folder();
  const auto real = fs::canonical(path, ignored);
  if (!folder || ignored)
    return std::nullopt;
  return *folder / (digest_of_text(real.string()) + ".json");
}

} // namespace

std::optional<model_content> remembered_content(const fs::path& path, const std::string& stamp) {
  const auto record = record_of(path);
  if (!record)
    return std::nullopt;
  auto text = std::ostringstream{};
  text << std::ifstream{*record, std::ios::binary}.rdbuf();
  const auto object = parse_object(text.str(), record_bytes_max, record_levels_max);
  if (!object)
    return std::nullopt;
  auto fields = json_fields{*object};
  if (fields.text("stamp") != stamp)
    return std::nullopt;
  auto content = model_content{};
  content.weights = fields.text("weights");
  content.bytes = fields.number<uint64_t>("bytes", 0, INT64_MAX);
  content.changed_ns = fields.number<int64_t>("changed_ns", 0, INT64_MAX);
  const auto files = fields.field("files");
  if (!fields.finish() || !files.is_object())
    return std::nullopt;
  for (const auto& [name, digest] : files.items()) {
    if (!digest.is_string())
      return std::nullopt;
    content.files[name] = digest;
  }
  return content;
}

void remember_content(const fs::path& path, const std::string& stamp,
                      const model_content& content) {
  const auto record = record_of(path);
  if (!record)
    return;
  auto object = json::parse(to_json(content));
  object["stamp"] = stamp;
  // Last, so that people see whose record this is.
  object["path"] = path.string();
  const auto text = object.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
  auto trouble = std::error_code{};
  fs::create_directories(record->parent_path(), trouble);
  auto name = (record->parent_path() / "new-XXXXXX").string();
  const auto file = unique_fd{::mkostemp(name.data(), O_CLOEXEC)};
  if (!file)
    return;
  const auto is_written
    = ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (!is_written || std::rename(name.c_str(), record->c_str()) != 0)
    ::unlink(name.c_str());
}

} // namespace hicache
