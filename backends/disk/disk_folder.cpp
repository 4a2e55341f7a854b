#include "backends/disk/disk_folder.hpp"

#include "backends/page_folder.hpp"
#include "base/check.hpp"
#include "base/numbers.hpp"
#include "base/try.hpp"
#include "messages/disk_record.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace hicache {

namespace {

namespace fs = std::filesystem;

constexpr auto prefix = std::string_view{"segment-"};
constexpr auto suffix = std::string_view{".log"};

std::string name_of(uint32_t segment) {
  auto digits = std::to_string(segment);
  digits.insert(0, 8 - std::min<size_t>(8, digits.size()), '0');
  return std::string{prefix} + digits + std::string{suffix};
}

/// The segment of a file; empty if it is another file.
std::optional<uint32_t> segment_of(std::string_view name) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix))
    return std::nullopt;
  const auto digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  return parse_number<uint32_t>(digits);
}

} // namespace

result<std::unique_ptr<disk_folder>> disk_folder::open(const std::string& path,
                                                       uint64_t segment_bytes) {
  HICACHE_CHECK(segment_bytes > 0 && segment_bytes % disk_block_bytes == 0);
  auto made = std::unique_ptr<disk_folder>{new disk_folder{path, segment_bytes}};
  auto failed = std::error_code{};
  fs::create_directories(path, failed);
  made->folder_ = unique_fd{::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (failed || !made->folder_)
    return file_failure("open the folder", path, failed ? failed.value() : errno);
  const auto lock = path + "/lock";
  made->lock_ = unique_fd{::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
  if (!made->lock_)
    return file_failure("create", lock, errno);
  if (::flock(made->lock_.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(ec::io_failure, "another process uses the folder " + path);
  HICACHE_TRY(made->open_all());
  return made;
}

std::vector<uint32_t> disk_folder::segments() const {
  const auto lock = std::shared_lock{mutex_};
  auto found = std::vector<uint32_t>{};
  for (const auto& [number, file] : files_)
    found.push_back(number);
  return found;
}

result<void> disk_folder::create(uint32_t segment) {
  const auto path = path_of(segment);
  auto file = open_file(path, O_CREAT);
  if (!file)
    return file_failure("create", path, errno);
  // Blocks that are there cannot be missing later, and are not allocated while pages wait.
  auto failed = ::fallocate(file.get(), 0, 0, static_cast<off_t>(segment_bytes_)) == 0 ? 0 : errno;
  if (failed == EOPNOTSUPP)
    failed = ::ftruncate(file.get(), static_cast<off_t>(segment_bytes_)) == 0 ? 0 : errno;
  if (failed == 0 && ::fsync(file.get()) != 0)
    failed = errno;
  if (failed == 0 && ::fsync(folder_.get()) != 0)
    failed = errno;
  if (failed != 0) {
    ::unlink(path.c_str());
    return file_failure("create", path, failed);
  }
  add(segment, std::move(file));
  return {};
}

result<void> disk_folder::remove(uint32_t segment) {
  {
    const auto lock = std::scoped_lock{mutex_};
    files_.erase(segment);
  }
  const auto path = path_of(segment);
  if (::unlink(path.c_str()) != 0)
    return file_failure("remove", path, errno);
  return {};
}

result<void> disk_folder::sync(uint32_t segment) {
  if (::fdatasync(file(segment)) != 0)
    return file_failure("sync", path_of(segment), errno);
  return {};
}

int disk_folder::file(uint32_t segment) const {
  const auto lock = std::shared_lock{mutex_};
  return files_.at(segment).get();
}

std::string disk_folder::path_of(uint32_t segment) const {
  return path_ + '/' + name_of(segment);
}

unique_fd disk_folder::open_file(const std::string& path, int flags) {
  flags |= O_RDWR | O_CLOEXEC;
  if (bypasses_cache_) {
    auto file = unique_fd{::open(path.c_str(), flags | O_DIRECT, 0600)};
    if (file || errno != EINVAL)
      return file;
    bypasses_cache_ = false;
  }
  return unique_fd{::open(path.c_str(), flags, 0600)};
}

result<void> disk_folder::open_all() {
  auto failed = std::error_code{};
  for (const auto& entry : fs::directory_iterator{path_, failed}) {
    const auto number = segment_of(entry.path().filename().string());
    if (!number)
      continue;
    using file_status = struct stat;
    auto length = file_status{};
    auto file = open_file(entry.path().string(), 0);
    if (!file || ::fstat(file.get(), &length) != 0)
      return file_failure("open", entry.path().string(), errno);
    if (static_cast<uint64_t>(length.st_size) == segment_bytes_)
      add(*number, std::move(file));
    else if (::unlink(entry.path().c_str()) != 0)
      return file_failure("remove", entry.path().string(), errno);
  }
  if (failed)
    return file_failure("list", path_, failed.value());
  return {};
}

void disk_folder::add(uint32_t segment, unique_fd file) {
  const auto lock = std::scoped_lock{mutex_};
  files_.insert_or_assign(segment, std::move(file));
}

} // namespace hicache
