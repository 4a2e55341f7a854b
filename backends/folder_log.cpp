#include "backends/folder_log.hpp"

#include "backends/page_folder.hpp"
#include "base/limits.hpp"
#include "base/page_checksum.hpp"
#include "base/try.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <string_view>
#include <utility>

namespace hicache {

namespace {

constexpr auto log_suffix = std::string_view{".log"};
constexpr size_t name_digits = 16;

/// An event as stored in a file, in the machine's byte order.
struct log_entry {
  uint32_t magic = 0;
  uint32_t what = 0;
  std::array<uint8_t, 32> key{};
  std::array<uint8_t, 32> parent{};
  uint64_t bytes = 0;
  int64_t time = 0;
  uint64_t checksum = 0;

  uint64_t sum() const {
    const auto body = std::as_bytes(std::span{this, 1}).first(offsetof(log_entry, checksum));
    return page_checksum(std::vector{body});
  }
};

static_assert(sizeof(log_entry) == 96);

constexpr uint32_t entry_magic = 0x31676c68; // "hlg1"

log_entry encode(const folder_event& event) {
  auto entry = log_entry{entry_magic,     static_cast<uint32_t>(event.what),
                         event.key.bytes, event.parent.bytes,
                         event.bytes,     event.time};
  entry.checksum = entry.sum();
  return entry;
}

bool is_log(std::string_view name) {
  return name.size() == name_digits + log_suffix.size() && name.ends_with(log_suffix)
         && name.find_first_not_of("0123456789abcdef") == name_digits;
}

std::string new_name() {
  auto random = std::random_device{};
  auto name = std::string{};
  for (auto i = size_t{0}; i < name_digits; ++i)
    name += "0123456789abcdef"[random() % 16];
  return name + std::string{log_suffix};
}

std::vector<std::string> logs_in(const std::string& path) {
  auto names = names_in(path);
  std::erase_if(names, [](const std::string& name) { return !is_log(name); });
  std::ranges::sort(names);
  return names;
}

result<unique_fd> create(const std::string& path) {
  auto file
    = unique_fd{::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
  if (!file)
    return file_failure("create the file", path, errno);
  return file;
}

} // namespace

result<folder_log> folder_log::open(const std::string& folder) {
  const auto path = folder + "/.hicache";
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
    return file_failure("create the folder", path, errno);
  const auto has_others = !logs_in(path).empty();
  auto name = new_name();
  auto file = HICACHE_TRY(create(path + '/' + name));
  auto log = folder_log{path, std::move(name), std::move(file)};
  log.has_others_ = has_others;
  return log;
}

result<void> folder_log::append(std::span<const folder_event> events) {
  // Another process may have removed this log, mistaking its writer for gone.
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0 || info.st_nlink == 0) {
    auto name = new_name();
    auto file = HICACHE_TRY(create(path_ + '/' + name));
    const auto lock = std::scoped_lock{*mutex_};
    name_ = std::move(name);
    file_ = std::move(file);
    info.st_size = 0;
  }
  auto entries = std::vector<log_entry>{};
  entries.reserve(events.size());
  for (const auto& event : events)
    entries.push_back(encode(event));
  const auto bytes = std::as_bytes(std::span{entries});
  for (auto done = size_t{0}; done < bytes.size();) {
    const auto written = ::write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0) {
      const auto reason = errno;
      // Entries after a partial one would be unreadable.
      [[maybe_unused]] const auto cut = ::ftruncate(file_.get(), info.st_size);
      return file_failure("write to", path_ + '/' + name_, reason);
    }
    done += static_cast<size_t>(written);
  }
  return {};
}

std::vector<folder_event> folder_log::news() {
  auto events = std::vector<folder_event>{};
  auto chunk = std::vector<log_entry>(4096);
  const auto mine = [this] {
    const auto lock = std::scoped_lock{*mutex_};
    return name_;
  }();
  for (const auto& name : logs_in(path_)) {
    if (name == mine)
      continue;
    auto& other = others_[name];
    if (!other.file)
      other.file = unique_fd{::open((path_ + '/' + name).c_str(), O_RDONLY | O_CLOEXEC)};
    while (other.file && events.size() < limits::folder_log_events) {
      const auto got = ::pread(other.file.get(), chunk.data(), chunk.size() * sizeof(log_entry),
                               static_cast<off_t>(other.read_bytes));
      const auto count = got > 0 ? static_cast<size_t>(got) / sizeof(log_entry) : size_t{0};
      if (count == 0)
        break;
      other.read_bytes += count * sizeof(log_entry);
      for (const auto& entry : std::span{chunk}.first(count))
        if (entry.magic == entry_magic && entry.checksum == entry.sum()
            && entry.what <= static_cast<uint32_t>(folder_event::action::used))
          events.push_back({static_cast<folder_event::action>(entry.what),
                            {entry.key},
                            {entry.parent},
                            entry.bytes,
                            entry.time});
    }
  }
  std::ranges::stable_sort(events, {}, &folder_event::time);
  return events;
}

std::vector<std::string> folder_log::old_logs() const {
  struct stat mine {};
  if (::fstat(file_.get(), &mine) != 0)
    return {};
  auto names = std::vector<std::string>{};
  for (const auto& [name, other] : others_) {
    struct stat info {};
    // Compares file system times only.
    if (other.file && ::fstat(other.file.get(), &info) == 0
        && info.st_mtim.tv_sec + limits::folder_log_age.count() < mine.st_mtim.tv_sec
        && other.read_bytes + sizeof(log_entry) > static_cast<uint64_t>(info.st_size))
      names.push_back(name);
  }
  return names;
}

bool folder_log::is_wasteful(uint64_t pages) {
  const auto old = old_logs();
  auto bytes = uint64_t{0};
  for (const auto& name : old)
    bytes += others_.at(name).read_bytes;
  return old.size() > limits::folder_logs || bytes > 4 * pages * sizeof(log_entry) + (1U << 20);
}

void folder_log::drop_old() {
  for (const auto& name : old_logs()) {
    ::unlink((path_ + '/' + name).c_str());
    others_.erase(name);
  }
}

} // namespace hicache
