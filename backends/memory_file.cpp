#include "backends/memory_file.hpp"

#include "base/random_number.hpp"
#include "base/system_message.hpp"
#include "base/try.hpp"
#include "base/units.hpp"

#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace hicache {

namespace {

struct locked_file {
  unique_fd lock;
  uint64_t bytes = 0;
  /// Whether this process created it.
  bool is_made = false;
};

result<locked_file> lock_file(const std::string& path) {
  constexpr auto flags = O_RDWR | O_CLOEXEC | O_NONBLOCK;
  auto file = locked_file{unique_fd{::open(path.c_str(), flags)}, 0, false};
  if (!file.lock && errno == ENOENT) {
    file.lock = unique_fd{::open(path.c_str(), flags | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR)};
    file.is_made = true;
  }
  if (!file.lock)
    return fail(ec::invalid_argument, "cannot open " + path + ": " + system_message(errno));
  struct stat status = {};
  if (::fstat(file.lock.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return fail(ec::invalid_argument, path + " is no regular file");
  if (status.st_uid != ::geteuid())
    return fail(ec::invalid_argument, path + " is of user " + std::to_string(status.st_uid)
                                        + ", who could shrink it; expected one of this user");
  file.bytes = static_cast<uint64_t>(status.st_size);
  if (::flock(file.lock.get(), LOCK_EX | LOCK_NB) != 0)
    return fail(ec::invalid_argument, errno == EWOULDBLOCK
                                        ? "another node uses " + path
                                        : "cannot lock " + path + ": " + system_message(errno));
  return file;
}

/// The label of a file: at its end, or at its beginning if its creator died before finishing.
found_label label_of(const unique_fd& file, uint64_t bytes) {
  if (bytes < memory_label_bytes)
    return {};
  for (const auto offset : {bytes - memory_label_bytes, uint64_t{0}}) {
    auto read = std::array<std::byte, memory_label_bytes>{};
    const auto got = ::pread(file.get(), read.data(), read.size(), static_cast<off_t>(offset));
    if (got != static_cast<ssize_t>(read.size()))
      continue;
    if (const auto label = read_label(read); label.owner != memory_owner::stranger)
      return label;
  }
  return {};
}

result<void> check_size(const std::string& path, const locked_file& file, uint64_t bytes) {
  struct stat status = {};
  struct statfs system = {};
  if (::fstat(file.lock.get(), &status) == 0 && ::fstatfs(file.lock.get(), &system) == 0
      && system.f_type == HUGETLBFS_MAGIC && bytes % static_cast<uint64_t>(status.st_blksize) != 0)
    return fail(ec::invalid_argument, path + " is in huge pages of "
                                        + format_bytes(static_cast<uint64_t>(status.st_blksize))
                                        + "; expected --memory to be a multiple of that");
  if (file.bytes == 0)
    return {};
  if (label_of(file.lock, file.bytes).owner == memory_owner::stranger)
    return fail(ec::invalid_argument,
                path
                  + " was not written by a node; expected its memory file, an empty file, or "
                    "none");
  if (file.bytes != bytes)
    return fail(ec::invalid_argument, path + " has " + format_bytes(file.bytes) + " ("
                                        + std::to_string(file.bytes) + " bytes) and --memory says "
                                        + format_bytes(bytes)
                                        + "; expected the same, or another file");
  return {};
}

/// Restores the file as it was found, so that a failed open changes nothing.
void undo(const std::string& path, const locked_file& file) {
  if (file.is_made)
    ::unlink(path.c_str());
  else if (file.bytes == 0)
    static_cast<void>(::ftruncate(file.lock.get(), 0));
}

/// Maps a file through a separate open file description. Labels a new file at its beginning before
/// reserving room for the rest, which takes time.
result<shared_memory> map(const locked_file& file, uint64_t bytes) {
  const auto path = "/proc/self/fd/" + std::to_string(file.lock.get());
  const auto open = [&path] { return unique_fd{::open(path.c_str(), O_RDWR | O_CLOEXEC)}; };
  struct stat status = {};
  if (file.bytes == 0 && ::fstat(file.lock.get(), &status) == 0
      && ::ftruncate(file.lock.get(), static_cast<off_t>(bytes)) == 0) {
    const auto block = static_cast<uint64_t>(status.st_blksize);
    const auto first = std::min(bytes, std::max<uint64_t>(block, memory_label_bytes));
    auto begin = shared_memory::map_file(open(), bytes, first);
    if (!begin)
      return begin;
    write_label(begin->bytes(), {bytes, 0});
  }
  return shared_memory::map_file(open(), bytes, bytes);
}

} // namespace

result<memory_file> memory_file::open(const std::string& path, uint64_t bytes) {
  auto file = HICACHE_TRY(lock_file(path));
  const auto checked = check_size(path, file, bytes);
  auto memory = checked ? map(file, bytes) : tl::unexpected{checked.error()};
  if (!memory) {
    undo(path, file);
    return tl::unexpected{memory.error()};
  }
  auto opened = memory_file{std::move(file.lock), std::move(*memory)};
  opened.label(path);
  return opened;
}

void memory_file::label(const std::string& path) {
  const auto place = memory_.bytes().last(memory_label_bytes);
  const auto found = read_label(place);
  if (found.owner == memory_owner::known && found.label.bytes == memory_.size()) {
    contents_ = {found.label.seed, true};
    return;
  }
  if (found.owner != memory_owner::stranger)
    spdlog::warn("{} is damaged, or of another version: the node begins with no pages", path);
  // With another seed, nothing in the memory verifies as a page.
  contents_ = {random_number(), false};
  write_label(place, {memory_.size(), contents_.seed});
  if (read_label(memory_.bytes()).owner != memory_owner::stranger)
    clear_label(memory_.bytes());
}

} // namespace hicache
