#include "backends/file_backend.hpp"

#include "backends/lru_table.hpp"
#include "backends/page_folder.hpp"
#include "base/check.hpp"
#include "base/page_checksum.hpp"
#include "base/units.hpp"
#include "messages/page_header.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <utility>

namespace hicache {

namespace {

/// A file's name is given out once.
constexpr uint32_t file_generation = 1;

/// Objects in parts shorter than this on average are read and written through a buffer: copying
/// 256 bytes costs less than what the kernel does for a piece.
constexpr uint64_t short_part_bytes = 4096;

template <class Byte>
bool is_scattered(const std::vector<std::span<Byte>>& parts) {
  return parts.size() > 1 && total_bytes(parts) / parts.size() < short_part_bytes;
}

using header_bytes = std::array<std::byte, page_header_bytes>;

/// The header and the parts as one list for readv or writev.
template <class Byte>
std::vector<iovec> pieces_of(header_bytes& header, const std::vector<std::span<Byte>>& parts) {
  auto pieces = std::vector<iovec>{{header.data(), header.size()}};
  pieces.reserve(parts.size() + 1);
  for (const auto& part : parts)
    pieces.push_back({const_cast<std::byte*>(part.data()), part.size()});
  return pieces;
}

/// A temporary file that is gone unless it was published.
class temporary_file {
public:
  explicit temporary_file(std::pair<unique_fd, std::string> made)
    : file_(std::move(made.first)), path_(std::move(made.second)) {}
  temporary_file(temporary_file&& other) noexcept
    : file_(std::move(other.file_)), path_(std::exchange(other.path_, {})) {}
  temporary_file& operator=(temporary_file&&) = delete;
  ~temporary_file() {
    if (!path_.empty())
      ::unlink(path_.c_str());
  }

  int fd() const noexcept { return file_.get(); }

  const std::string& path() const noexcept { return path_; }

  /// @returns 0 or an errno value.
  int publish(const std::string& target) {
    if (::rename(path_.c_str(), target.c_str()) != 0)
      return errno;
    path_.clear();
    return 0;
  }

private:
  unique_fd file_;
  std::string path_;
};

class file_backend final : public storage_backend {
public:
  file_backend(page_folder folder, const file_backend_options& options, const clock_source& clock)
    : folder_(std::move(folder)), fingerprint_(options.fingerprint),
      capacity_(options.max_bytes / options.share.count), clock_(clock) {
    const auto lock = std::scoped_lock{mutex_};
    for (const auto& page : folder_.scan())
      if (page.key.bytes.back() % options.share.count == options.share.index)
        table_.insert(page.key, page.bytes, {});
    make_room(0);
  }

  std::string name() const override { return "file"; }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override {
    auto answers = std::vector<bool>(keys.size(), false);
    for (auto i = size_t{0}; i < keys.size() && clock_.now() < deadline; ++i)
      answers[i] = file_exists(keys[i]);
    return answers;
  }

  std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) override {
    auto answers = std::vector<result<void>>{};
    auto buffer = std::vector<std::byte>{};
    for (const auto& page : pages) {
      answers.push_back(clock_.now() < deadline ? get_page(page, buffer)
                                                : fail(ec::deadline_exceeded));
      const auto lock = std::scoped_lock{mutex_};
      counters_.count_get(answers.back());
    }
    return answers;
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override {
    auto answers = std::vector<result<void>>{};
    auto buffer = std::vector<std::byte>{};
    for (const auto& page : pages) {
      answers.push_back(clock_.now() < deadline ? set_page(page, buffer)
                                                : fail(ec::deadline_exceeded));
      const auto lock = std::scoped_lock{mutex_};
      counters_.count_set(answers.back());
    }
    return answers;
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override {
    auto answers = std::vector<result<void>>{};
    for (const auto& key : keys)
      answers.push_back(clock_.now() < deadline ? discard(key) : fail(ec::deadline_exceeded));
    return answers;
  }

  backend_health health() override {
    auto answer = backend_health{};
    if (::access(folder_.path().c_str(), W_OK | X_OK) != 0) {
      answer.ok = false;
      answer.detail = file_failure("use", folder_.path(), errno).value().detail;
    }
    const auto lock = std::scoped_lock{mutex_};
    answer.objects = table_.size();
    answer.bytes = table_.bytes();
    answer.capacity_bytes = capacity_;
    answer.counters = counters_;
    return answer;
  }

private:
  // -- reading ----------------------------------------------------------------

  /// Asks the file system, because other processes write to the folder too.
  bool file_exists(const page_key& key) const {
    return ::access(folder_.page_path(key).c_str(), F_OK) == 0;
  }

  result<void> get_page(const page_read& page, std::vector<std::byte>& buffer) {
    const auto path = folder_.page_path(page.key);
    const auto file = unique_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    if (!file) {
      if (errno != ENOENT)
        return file_failure("open", path, errno);
      forget(page.key);
      return fail(ec::not_found);
    }
    auto answer = is_scattered(page.parts) ? read_scattered(file.get(), path, page, buffer)
                                           : read_page(file.get(), path, page);
    if (answer) {
      const auto lock = std::scoped_lock{mutex_};
      table_.touch(page.key);
    } else if (answer.error().code == ec::corrupt_page) {
      static_cast<void>(discard(page.key));
    }
    return answer;
  }

  result<void> read_scattered(int fd, const std::string& path, const page_read& page,
                              std::vector<std::byte>& buffer) const {
    buffer.resize(total_bytes(page.parts));
    auto read = read_page(fd, path, {page.key, {buffer}});
    if (read)
      scatter(buffer.data(), page.parts);
    return read;
  }

  result<void> read_page(int fd, const std::string& path, const page_read& page) const {
    struct stat info {};
    if (::fstat(fd, &info) != 0)
      return file_failure("read", path, errno);
    const auto file_bytes = static_cast<uint64_t>(info.st_size);
    const auto length = total_bytes(page.parts);
    const auto length_fits = file_bytes == page_header_bytes + length;
    auto header = header_bytes{};
    // Where the lengths differ only the header is read: it tells whether the file or the caller is
    // wrong.
    const auto read
      = read_pieces(fd, length_fits ? pieces_of(header, page.parts)
                                    : std::vector<iovec>{{header.data(), header.size()}});
    if (read.error != 0)
      return file_failure("read", path, read.error);
    if (read.bytes < page_header_bytes + (length_fits ? length : 0))
      return fail(ec::corrupt_page, "'" + path + "' is short");
    const auto decoded = decode_page_header(header);
    if (!decoded)
      return fail(ec::corrupt_page, "'" + path + "': " + decoded.error().detail);
    if (decoded->key != page.key || decoded->fingerprint != fingerprint_)
      return fail(ec::corrupt_page, "'" + path + "' holds a page of another key or namespace");
    if (decoded->generation != file_generation)
      return fail(ec::corrupt_page, "'" + path + "' has a generation that no file has");
    if (decoded->length != file_bytes - page_header_bytes)
      return fail(ec::corrupt_page, "'" + path + "' has not the length that its header says");
    if (!length_fits)
      return fail(ec::invalid_argument, "'" + path + "' holds " + std::to_string(decoded->length)
                                          + " bytes, the parts " + std::to_string(length));
    if (decoded->checksum != page_checksum(page.parts))
      return fail(ec::corrupt_page, "'" + path + "' has not the checksum that its header says");
    return {};
  }

  // -- writing ----------------------------------------------------------------

  result<void> set_page(const page_write& page, std::vector<std::byte>& buffer) {
    {
      const auto lock = std::scoped_lock{mutex_};
      table_.touch(page.key);
      if (file_exists(page.key))
        return {};
    }
    if (is_scattered(page.parts)) {
      buffer.resize(total_bytes(page.parts));
      gather(page.parts, buffer.data());
    }
    const auto file_bytes = page_header_bytes + total_bytes(page.parts);
    if (auto reserved = reserve(file_bytes); !reserved)
      return reserved;
    auto file = is_scattered(page.parts)
                  ? write_temporary({page.key, page.parent, {buffer}}, file_bytes)
                  : write_temporary(page, file_bytes);
    // Under the lock, so that a table entry and its file come and go together.
    const auto lock = std::scoped_lock{mutex_};
    reserved_ -= file_bytes;
    if (!file)
      return tl::unexpected{file.error()};
    const auto path = folder_.page_path(page.key);
    if (const auto failed = file->publish(path); failed != 0)
      return file_failure("write", path, failed);
    table_.insert(page.key, file_bytes, {});
    return {};
  }

  result<temporary_file> write_temporary(const page_write& page, uint64_t file_bytes) const {
    auto made = folder_.make_temporary(page.key);
    if (!made)
      return tl::unexpected{made.error()};
    auto file = temporary_file{std::move(*made)};
    auto header = header_bytes{};
    encode_page_header(
      {1, fingerprint_, page.key, file_bytes - page_header_bytes, page_checksum(page.parts)},
      header);
    const auto written = write_pieces(file.fd(), pieces_of(header, page.parts));
    if (written.error != 0 || written.bytes != file_bytes)
      return file_failure("write", file.path(), written.error != 0 ? written.error : EIO);
    return file;
  }

  /// Sets bytes aside for a file that is about to be written.
  result<void> reserve(uint64_t bytes) {
    const auto lock = std::scoped_lock{mutex_};
    if (capacity_ != 0 && bytes > capacity_)
      return fail(ec::store_full, "a page of " + format_bytes(bytes) + " does not fit into "
                                    + format_bytes(capacity_));
    make_room(bytes);
    if (capacity_ != 0 && table_.bytes() + reserved_ + bytes > capacity_)
      return fail(ec::store_full, "pages being written fill the store");
    reserved_ += bytes;
    return {};
  }

  /// @pre the lock is held
  void make_room(uint64_t bytes) {
    while (capacity_ != 0 && table_.size() > 0 && table_.bytes() + reserved_ + bytes > capacity_) {
      // A file that another process removed is gone as well as one that we remove.
      ::unlink(folder_.page_path(table_.pop_oldest()).c_str());
      ++counters_.evicted;
    }
  }

  // -- removing ---------------------------------------------------------------

  result<void> discard(const page_key& key) {
    const auto lock = std::scoped_lock{mutex_};
    const auto path = folder_.page_path(key);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
      return file_failure("remove", path, errno);
    table_.erase(key);
    return {};
  }

  /// Drops the entry of a file that is not there, unless it has just come back.
  void forget(const page_key& key) {
    const auto lock = std::scoped_lock{mutex_};
    if (table_.contains(key) && !file_exists(key))
      table_.erase(key);
  }

  struct nothing {};

  const page_folder folder_;
  const uint64_t fingerprint_;
  /// Bound on this process's share; 0 for none.
  const uint64_t capacity_;
  const clock_source& clock_;
  /// Guards what follows. Never held while page bytes move.
  std::mutex mutex_;
  lru_table<nothing> table_;
  /// Bytes of files that are being written.
  uint64_t reserved_ = 0;
  backend_counters counters_;
};

} // namespace

result<std::unique_ptr<storage_backend>> make_file_backend(file_backend_options options,
                                                           const clock_source& clock) {
  HICACHE_CHECK(options.share.count > 0 && options.share.index < options.share.count);
  auto folder = page_folder::open(options.path);
  if (!folder)
    return tl::unexpected{folder.error()};
  if (options.max_bytes != 0 && options.max_bytes < options.share.count)
    return fail(ec::invalid_argument, "max_bytes is " + std::to_string(options.max_bytes)
                                        + "; expected at least one byte per process");
  return std::make_unique<file_backend>(std::move(*folder), options, clock);
}

} // namespace hicache
