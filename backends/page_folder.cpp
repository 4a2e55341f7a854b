#include "backends/page_folder.hpp"

#include "base/limits.hpp"
#include "base/rest_of.hpp"
#include "base/system_message.hpp"
#include "messages/page_header.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace hicache {

namespace {

namespace fs = std::filesystem;

constexpr auto page_suffix = std::string_view{".kv"};
constexpr auto temporary_suffix = std::string_view{".tmp"};
constexpr size_t key_digits = 64;
/// Length of what mkstemps inserts between key and suffix, including the dot.
constexpr size_t temporary_mark = 7;

/// preadv and pwritev stop early after a signal, at 2 GiB and at the end of the file.
template <class Call>
transfer_outcome transfer(Call call, int fd, std::vector<iovec>& pieces) {
  auto outcome = transfer_outcome{};
  for (auto left = rest_of(pieces, 0); !left.empty();) {
    const auto count = static_cast<int>(std::min<size_t>(left.size(), IOV_MAX));
    const auto moved = call(fd, left.data(), count, static_cast<off_t>(outcome.bytes));
    if (moved < 0 && errno == EINTR)
      continue;
    if (moved < 0)
      outcome.error = errno;
    if (moved <= 0)
      break;
    outcome.bytes += static_cast<uint64_t>(moved);
    left = rest_of(left, static_cast<size_t>(moved));
  }
  return outcome;
}

bool is_temporary(std::string_view name) {
  return name.size() == key_digits + temporary_mark + temporary_suffix.size()
         && name.ends_with(temporary_suffix) && parse_page_key(name.substr(0, key_digits));
}

/// Whether the file begins with the header of this page.
bool has_header(const std::string& path, const page_key& key) {
  const auto file = unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  auto bytes = std::array<std::byte, page_header_bytes>{};
  if (!file
      || ::pread(file.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    return false;
  const auto header = decode_page_header(bytes);
  return header && header->key == key;
}

} // namespace

transfer_outcome read_pieces(int fd, std::vector<iovec> pieces) {
  return transfer(::preadv, fd, pieces);
}

transfer_outcome write_pieces(int fd, std::vector<iovec> pieces) {
  return transfer(::pwritev, fd, pieces);
}

tl::unexpected<error> file_failure(const std::string& action, const std::string& path,
                                   int error_number) {
  const auto code
    = error_number == ENOSPC || error_number == EDQUOT ? ec::store_full : ec::io_failure;
  return fail(code, "cannot " + action + " '" + path + "': " + system_message(error_number));
}

std::vector<std::string> names_in(const std::string& folder) {
  auto names = std::vector<std::string>{};
  auto failed = std::error_code{};
  for (auto entry = fs::directory_iterator{folder, failed};
       !failed && entry != fs::directory_iterator{}; entry.increment(failed))
    names.push_back(entry->path().filename().string());
  return names;
}

result<page_folder> page_folder::open(std::string path) {
  if (path.empty())
    return fail(ec::invalid_argument, "the file backend needs a folder; expected a path");
  auto failed = std::error_code{};
  fs::create_directories(path, failed);
  if (failed)
    return file_failure("create the folder", path, failed.value());
  // Permission bits are not conclusive; only creating a file is.
  auto probe = path + "/.probe.XXXXXX";
  const auto file = unique_fd{::mkostemp(probe.data(), O_CLOEXEC)};
  if (!file)
    return file_failure("write in the folder", path, errno);
  ::unlink(probe.c_str());
  return page_folder{std::move(path)};
}

std::string page_folder::page_path(const page_key& key) const {
  const auto digits = to_string(key);
  return path_ + '/' + digits.substr(0, 2) + '/' + digits + std::string{page_suffix};
}

result<std::pair<unique_fd, std::string>> page_folder::make_temporary(const std::string& directory,
                                                                      const page_key& key) {
  auto name = directory + '/' + to_string(key) + ".XXXXXX" + std::string{temporary_suffix};
  auto file
    = unique_fd{::mkostemps(name.data(), static_cast<int>(temporary_suffix.size()), O_CLOEXEC)};
  if (!file)
    return file_failure("create a file in", directory, errno);
  return std::pair{std::move(file), std::move(name)};
}

int page_folder::publish(const std::string& temporary, const page_key& key) const {
  const auto target = page_path(key);
  if (::rename(temporary.c_str(), target.c_str()) == 0)
    return 0;
  if (errno != ENOENT)
    return errno;
  if (::mkdir(fs::path{target}.parent_path().c_str(), 0777) != 0 && errno != EEXIST)
    return errno;
  return ::rename(temporary.c_str(), target.c_str()) == 0 ? 0 : errno;
}

void page_folder::remove_abandoned(const std::string& directory) {
  auto probe = directory + "/.probe.XXXXXX";
  const auto file = unique_fd{::mkostemp(probe.data(), O_CLOEXEC)};
  struct stat now {};
  if (!file || ::fstat(file.get(), &now) != 0)
    return;
  ::unlink(probe.c_str());
  const auto oldest = now.st_mtim.tv_sec - std::chrono::seconds{limits::folder_write_time}.count();
  for (const auto& name : names_in(directory)) {
    const auto path = directory + '/' + name;
    struct stat info {};
    if (is_temporary(name) && ::lstat(path.c_str(), &info) == 0 && info.st_mtim.tv_sec < oldest)
      ::unlink(path.c_str());
  }
}

std::vector<std::string> page_folder::directories() const {
  auto names = names_in(path_);
  std::erase_if(names, [](const std::string& name) {
    return name.size() != 2 || name.find_first_not_of("0123456789abcdef") != std::string::npos;
  });
  return names;
}

std::vector<page_folder::found_page> page_folder::scan(const std::string& directory) const {
  auto found = std::vector<found_page>{};
  for (const auto& name : names_in(path_ + '/' + directory)) {
    if (!name.starts_with(directory) || !name.ends_with(page_suffix))
      continue;
    const auto key
      = parse_page_key(std::string_view{name}.substr(0, name.size() - page_suffix.size()));
    const auto path = path_ + '/' + directory + '/' + name;
    struct stat info {};
    if (!key || ::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)
        || !has_header(path, *key))
      continue;
    found.push_back({*key, static_cast<uint64_t>(info.st_size),
                     int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec});
  }
  return found;
}

} // namespace hicache
