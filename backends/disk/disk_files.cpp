#include "backends/disk/disk_files.hpp"

#include "backends/page_folder.hpp"
#include "base/check.hpp"
#include "base/unique_fd.hpp"
#include "messages/disk_record.hpp"

#include <fcntl.h>
#include <liburing.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <system_error>
#include <utility>

namespace hicache {

namespace {

namespace fs = std::filesystem;

constexpr auto prefix = std::string_view{"segment-"};
constexpr auto suffix = std::string_view{".log"};

/// Transfers under way in a channel: enough for the fastest NVMe disks, by fio.
constexpr auto uring_depth = size_t{64};

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
  auto segment = uint32_t{};
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), segment);
  return failed == std::errc{} && end == digits.data() + digits.size() ? std::optional{segment}
                                                                       : std::nullopt;
}

/// Memory at whole pages, which transfers that bypass the page cache need.
class page_memory {
public:
  explicit page_memory(size_t bytes)
    : bytes_(bytes),
      memory_(static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0))) {
    HICACHE_CHECK(memory_ != MAP_FAILED);
  }

  page_memory(const page_memory&) = delete;
  page_memory& operator=(const page_memory&) = delete;

  ~page_memory() { ::munmap(memory_, bytes_); }

  std::span<std::byte> bytes() const noexcept { return {memory_, bytes_}; }

private:
  const size_t bytes_;
  std::byte* const memory_;
};

/// Descriptors of the segments.
class open_files {
public:
  int get(uint32_t segment) const {
    const auto lock = std::shared_lock{mutex_};
    return files_.at(segment).get();
  }

  void set(uint32_t segment, unique_fd file) {
    const auto lock = std::scoped_lock{mutex_};
    files_.insert_or_assign(segment, std::move(file));
  }

  void erase(uint32_t segment) {
    const auto lock = std::scoped_lock{mutex_};
    files_.erase(segment);
  }

  std::vector<uint32_t> numbers() const {
    const auto lock = std::shared_lock{mutex_};
    auto found = std::vector<uint32_t>{};
    for (const auto& [number, file] : files_)
      found.push_back(number);
    return found;
  }

private:
  mutable std::shared_mutex mutex_;
  std::map<uint32_t, unique_fd> files_;
};

/// A transfer, and how much of it is left.
struct transfer {
  int file = -1;
  uint64_t offset = 0;
  std::byte* memory = nullptr;
  size_t bytes = 0;
  bool is_write = false;
  uint64_t tag = 0;
};

/// Does each transfer when it is started.
class direct_channel final : public disk_channel {
public:
  direct_channel(const open_files& files, size_t bytes) : files_(files), memory_(bytes) {}

  std::span<std::byte> memory() noexcept override { return memory_.bytes(); }

  void read(uint32_t segment, uint64_t offset, std::span<std::byte> to, uint64_t tag) override {
    run({files_.get(segment), offset, to.data(), to.size(), false, tag});
  }

  void write(uint32_t segment, uint64_t offset, std::span<const std::byte> from,
             uint64_t tag) override {
    run({files_.get(segment), offset, const_cast<std::byte*>(from.data()), from.size(), true, tag});
  }

  completion wait() override {
    const auto ended = done_.front();
    done_.pop_front();
    return ended;
  }

  size_t depth() const noexcept override { return uring_depth; }

private:
  void run(transfer x) {
    while (x.bytes > 0) {
      const auto offset = static_cast<off_t>(x.offset);
      const auto moved = x.is_write ? ::pwrite(x.file, x.memory, x.bytes, offset)
                                    : ::pread(x.file, x.memory, x.bytes, offset);
      if (moved < 0 && errno == EINTR)
        continue;
      if (moved <= 0) {
        done_.push_back({x.tag, moved == 0 ? EIO : errno});
        return;
      }
      x.memory += moved;
      x.offset += static_cast<uint64_t>(moved);
      x.bytes -= static_cast<size_t>(moved);
    }
    done_.push_back({x.tag, 0});
  }

  const open_files& files_;
  const page_memory memory_;
  std::deque<completion> done_;
};

/// Transfers through io_uring.
class uring_channel final : public disk_channel {
public:
  /// @returns null if the kernel does not allow it
  static std::unique_ptr<uring_channel> open(const open_files& files, size_t bytes) {
    auto channel = std::unique_ptr<uring_channel>{new uring_channel{files, bytes}};
    if (::io_uring_queue_init(uring_depth, &channel->ring_, 0) != 0)
      return nullptr;
    channel->is_open_ = true;
    // Limits on locked memory may forbid it.
    auto region = iovec{channel->memory_.bytes().data(), bytes};
    channel->is_registered_ = ::io_uring_register_buffers(&channel->ring_, &region, 1) == 0;
    return channel;
  }

  ~uring_channel() override {
    if (is_open_)
      ::io_uring_queue_exit(&ring_);
  }

  std::span<std::byte> memory() noexcept override { return memory_.bytes(); }

  void read(uint32_t segment, uint64_t offset, std::span<std::byte> to, uint64_t tag) override {
    start({files_.get(segment), offset, to.data(), to.size(), false, tag});
  }

  void write(uint32_t segment, uint64_t offset, std::span<const std::byte> from,
             uint64_t tag) override {
    start(
      {files_.get(segment), offset, const_cast<std::byte*>(from.data()), from.size(), true, tag});
  }

  completion wait() override {
    while (true) {
      auto* entry = static_cast<io_uring_cqe*>(nullptr);
      const auto failed = ::io_uring_submit_and_wait(&ring_, 1);
      if (failed < 0 && failed != -EINTR)
        HICACHE_CHECK(failed == -EAGAIN || failed == -EBUSY);
      if (::io_uring_peek_cqe(&ring_, &entry) != 0)
        continue;
      const auto slot = static_cast<size_t>(::io_uring_cqe_get_data64(entry));
      const auto moved = entry->res;
      ::io_uring_cqe_seen(&ring_, entry);
      auto& x = transfers_[slot];
      if (moved == -EINTR || moved == -EAGAIN) {
        queue(slot);
        continue;
      }
      if (moved > 0 && static_cast<size_t>(moved) < x.bytes) {
        x.memory += moved;
        x.offset += static_cast<uint64_t>(moved);
        x.bytes -= static_cast<size_t>(moved);
        queue(slot);
        continue;
      }
      free_.push_back(slot);
      return {x.tag, moved > 0 ? 0 : moved == 0 ? EIO : -moved};
    }
  }

  size_t depth() const noexcept override { return uring_depth; }

private:
  uring_channel(const open_files& files, size_t bytes) : files_(files), memory_(bytes) {
    for (auto i = size_t{0}; i < uring_depth; ++i)
      free_.push_back(i);
  }

  void start(const transfer& x) {
    HICACHE_CHECK(!free_.empty() && x.bytes > 0);
    const auto slot = free_.back();
    free_.pop_back();
    transfers_[slot] = x;
    queue(slot);
    // At once, so that the disk works while the caller fills or checks other memory. What is left
    // goes with the next call.
    ::io_uring_submit(&ring_);
  }

  void queue(size_t slot) {
    const auto& x = transfers_[slot];
    auto* const entry = ::io_uring_get_sqe(&ring_);
    HICACHE_CHECK(entry != nullptr);
    const auto bytes = static_cast<unsigned>(x.bytes);
    if (x.is_write && is_registered_)
      ::io_uring_prep_write_fixed(entry, x.file, x.memory, bytes, x.offset, 0);
    else if (x.is_write)
      ::io_uring_prep_write(entry, x.file, x.memory, bytes, x.offset);
    else if (is_registered_)
      ::io_uring_prep_read_fixed(entry, x.file, x.memory, bytes, x.offset, 0);
    else
      ::io_uring_prep_read(entry, x.file, x.memory, bytes, x.offset);
    ::io_uring_sqe_set_data64(entry, slot);
  }

  const open_files& files_;
  const page_memory memory_;
  io_uring ring_{};
  bool is_open_ = false;
  bool is_registered_ = false;
  std::array<transfer, uring_depth> transfers_;
  std::vector<size_t> free_;
};

class disk_files final : public disk_device {
public:
  static result<std::unique_ptr<disk_device>> open(const std::string& folder,
                                                   uint64_t segment_bytes, bool may_use_uring) {
    auto made = std::unique_ptr<disk_files>{new disk_files{folder, segment_bytes}};
    auto failed = std::error_code{};
    fs::create_directories(folder, failed);
    made->folder_file_ = unique_fd{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (failed || !made->folder_file_)
      return file_failure("open the folder", folder, failed ? failed.value() : errno);
    const auto lock = folder + "/lock";
    made->lock_ = unique_fd{::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
    if (!made->lock_)
      return file_failure("create", lock, errno);
    if (::flock(made->lock_.get(), LOCK_EX | LOCK_NB) != 0)
      return fail(ec::io_failure, "another process uses the folder " + folder);
    if (auto found = made->open_all(); !found)
      return tl::unexpected{found.error()};
    made->uses_uring_ = may_use_uring && uring_channel::open(made->files_, disk_block_bytes);
    return made;
  }

  std::vector<uint32_t> segments() const override { return files_.numbers(); }

  result<void> create(uint32_t segment) override {
    const auto path = path_of(segment);
    auto file = open_file(path, O_CREAT);
    if (!file)
      return file_failure("create", path, errno);
    // Blocks that are there cannot be missing later, and are not allocated while pages wait.
    auto failed
      = ::fallocate(file.get(), 0, 0, static_cast<off_t>(segment_bytes_)) == 0 ? 0 : errno;
    if (failed == EOPNOTSUPP)
      failed = ::ftruncate(file.get(), static_cast<off_t>(segment_bytes_)) == 0 ? 0 : errno;
    if (failed == 0 && ::fsync(file.get()) != 0)
      failed = errno;
    if (failed == 0 && ::fsync(folder_file_.get()) != 0)
      failed = errno;
    if (failed != 0) {
      ::unlink(path.c_str());
      return file_failure("create", path, failed);
    }
    files_.set(segment, std::move(file));
    return {};
  }

  result<void> remove(uint32_t segment) override {
    files_.erase(segment);
    const auto path = path_of(segment);
    if (::unlink(path.c_str()) != 0)
      return file_failure("remove", path, errno);
    return {};
  }

  result<void> sync(uint32_t segment) override {
    if (::fdatasync(files_.get(segment)) != 0)
      return file_failure("sync", path_of(segment), errno);
    return {};
  }

  std::unique_ptr<disk_channel> open_channel(size_t bytes) override {
    if (uses_uring_)
      if (auto channel = uring_channel::open(files_, bytes))
        return channel;
    return std::make_unique<direct_channel>(files_, bytes);
  }

  std::string description() const override {
    return std::string{uses_uring_ ? "io_uring" : "threads"}
           + (bypasses_cache_ ? ", O_DIRECT" : ", page cache");
  }

private:
  disk_files(std::string folder, uint64_t segment_bytes)
    : folder_(std::move(folder)), segment_bytes_(segment_bytes) {}

  std::string path_of(uint32_t segment) const { return folder_ + '/' + name_of(segment); }

  unique_fd open_file(const std::string& path, int flags) {
    flags |= O_RDWR | O_CLOEXEC;
    if (bypasses_cache_) {
      auto file = unique_fd{::open(path.c_str(), flags | O_DIRECT, 0600)};
      if (file || errno != EINVAL)
        return file;
      bypasses_cache_ = false;
    }
    return unique_fd{::open(path.c_str(), flags, 0600)};
  }

  result<void> open_all() {
    auto failed = std::error_code{};
    for (const auto& entry : fs::directory_iterator{folder_, failed}) {
      const auto number = segment_of(entry.path().filename().string());
      if (!number)
        continue;
      using file_status = struct stat;
      auto length = file_status{};
      auto file = open_file(entry.path().string(), 0);
      if (!file || ::fstat(file.get(), &length) != 0)
        return file_failure("open", entry.path().string(), errno);
      if (static_cast<uint64_t>(length.st_size) == segment_bytes_)
        files_.set(*number, std::move(file));
      else if (::unlink(entry.path().c_str()) != 0)
        return file_failure("remove", entry.path().string(), errno);
    }
    if (failed)
      return file_failure("list", folder_, failed.value());
    return {};
  }

  const std::string folder_;
  const uint64_t segment_bytes_;
  unique_fd folder_file_;
  unique_fd lock_;
  open_files files_;
  bool bypasses_cache_ = true;
  bool uses_uring_ = false;
};

} // namespace

result<std::unique_ptr<disk_device>> open_disk_files(const std::string& folder,
                                                     uint64_t segment_bytes, bool may_use_uring) {
  HICACHE_CHECK(segment_bytes > 0 && segment_bytes % disk_block_bytes == 0);
  return disk_files::open(folder, segment_bytes, may_use_uring);
}

} // namespace hicache
