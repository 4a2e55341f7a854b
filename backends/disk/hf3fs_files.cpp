#include "backends/disk/hf3fs_files.hpp"

#include "backends/disk/disk_folder.hpp"
#include "backends/disk/hf3fs_library.hpp"
#include "base/check.hpp"
#include "base/immovable.hpp"
#include "base/system_message.hpp"
#include "base/try.hpp"
#include "base/unique_fd.hpp"
#include "messages/disk_record.hpp"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

namespace hicache {

namespace {

/// Transfers under way in a channel.
constexpr auto transfers_max = size_t{64};

/// Entries of a ring: one that is full could keep one of them free.
constexpr auto ring_entries = 2 * static_cast<int>(transfers_max);

/// Has memory and rings placed anywhere.
constexpr auto any_numa_node = -1;

/// What is shared with the daemon.
class hf3fs_channel final : public folder_channel, immovable {
public:
  static result<std::unique_ptr<disk_channel>> open(const hf3fs_library& library,
                                                    const std::string& mount_point,
                                                    const disk_folder& files, size_t bytes) {
    auto channel = std::unique_ptr<hf3fs_channel>{new hf3fs_channel{library, files}};
    if (const auto failed = channel->create(mount_point, bytes); failed != 0)
      return fail(ec::io_failure,
                  "3FS at " + mount_point
                    + " gives no memory and rings for transfers: " + system_message(-failed));
    return channel;
  }

  ~hf3fs_channel() override {
    for (auto* const each : {&reads_, &writes_})
      if (each->ring.iorh != nullptr)
        library_.iordestroy(&each->ring);
    if (memory_.iovh != nullptr)
      library_.iovdestroy(&memory_);
  }

  std::span<std::byte> memory() noexcept override {
    return {reinterpret_cast<std::byte*>(memory_.base), memory_.size};
  }

  completion wait() override {
    while (ended_.empty()) {
      auto& one = reads_.under_way > 0 ? reads_ : writes_;
      auto entry = hf3fs_cqe{};
      const auto count = library_.wait_for_ios(&one.ring, &entry, 1, 1, nullptr);
      HICACHE_CHECK(count >= 0);
      if (count == 0)
        continue;
      --one.under_way;
      take(
        static_cast<size_t>(static_cast<const file_transfer*>(entry.userdata) - transfers_.data()),
        entry.result);
    }
    const auto first = ended_.front();
    ended_.pop_front();
    return first;
  }

  size_t depth() const noexcept override { return transfers_max; }

private:
  struct shared_ring {
    hf3fs_ior ring{};
    size_t under_way = 0;
  };

  hf3fs_channel(const hf3fs_library& library, const disk_folder& files)
    : folder_channel(files), library_(library) {
    for (auto i = size_t{0}; i < transfers_max; ++i)
      free_.push_back(i);
  }

  /// @returns a negative errno value, or 0
  int create(const std::string& mount_point, size_t bytes) {
    auto failed = library_.iovcreate(&memory_, mount_point.c_str(), bytes, 0, any_numa_node);
    for (auto* const each : {&reads_, &writes_})
      if (failed == 0)
        failed = library_.iorcreate4(&each->ring, mount_point.c_str(), ring_entries,
                                     each == &reads_, 0, 0, any_numa_node, 0);
    return failed;
  }

  void start(file_transfer x) override {
    HICACHE_CHECK(!free_.empty() && x.bytes > 0);
    const auto slot = free_.back();
    free_.pop_back();
    transfers_[slot] = x;
    queue(slot);
  }

  void queue(size_t slot) {
    const auto& x = transfers_[slot];
    auto& one = x.is_write ? writes_ : reads_;
    const auto failed
      = library_.prep_io(&one.ring, &memory_, !x.is_write, x.memory, x.file, x.offset, x.bytes, &x);
    if (failed < 0)
      return end(slot, -failed);
    ++one.under_way;
    // A hint: the daemon also finds transfers by itself.
    library_.submit_ios(&one.ring);
  }

  /// @param moved Bytes, or a negative error of the daemon.
  void take(size_t slot, int64_t moved) {
    auto& x = transfers_[slot];
    if (moved < 0)
      return end(slot, static_cast<int>(std::min<int64_t>(-moved, INT_MAX)));
    if (moved == 0 && !x.is_write) {
      // Never written: the daemon does not fill in what no chunk holds.
      std::fill_n(x.memory, x.bytes, std::byte{0});
      return end(slot, 0);
    }
    const auto bytes = static_cast<uint64_t>(moved);
    if (bytes == 0 || bytes > x.bytes)
      return end(slot, EIO);
    x.advance(bytes);
    if (x.bytes > 0)
      queue(slot);
    else
      end(slot, 0);
  }

  void end(size_t slot, int error) {
    free_.push_back(slot);
    ended_.push_back({transfers_[slot].tag, error});
  }

  const hf3fs_library& library_;
  hf3fs_iov memory_{};
  shared_ring reads_;
  shared_ring writes_;
  std::array<file_transfer, transfers_max> transfers_;
  std::vector<size_t> free_;
  std::deque<completion> ended_;
};

class hf3fs_files final : public disk_device {
public:
  hf3fs_files(const hf3fs_library& library, std::string mount_point,
              std::unique_ptr<disk_folder> folder)
    : library_(library), mount_point_(std::move(mount_point)), folder_(std::move(folder)) {}

  ~hf3fs_files() override {
    for (const auto segment : registered_)
      library_.dereg_fd(folder_->file(segment));
  }

  /// Makes known to the library what there is, and tries a channel.
  result<void> start() {
    for (const auto segment : folder_->segments())
      HICACHE_TRY(enter(segment));
    return open_channel(disk_block_bytes).map([](const auto&) {});
  }

  std::vector<uint32_t> segments() const override { return folder_->segments(); }

  result<void> create(uint32_t segment) override {
    HICACHE_TRY(folder_->create(segment));
    auto known = enter(segment);
    if (!known)
      static_cast<void>(folder_->remove(segment));
    return known;
  }

  result<void> remove(uint32_t segment) override {
    library_.dereg_fd(folder_->file(segment));
    std::erase(registered_, segment);
    return folder_->remove(segment);
  }

  result<void> sync(uint32_t segment) override { return folder_->sync(segment); }

  result<std::unique_ptr<disk_channel>> open_channel(size_t bytes) override {
    return hf3fs_channel::open(library_, mount_point_, *folder_, bytes);
  }

  std::string description() const override { return "3FS at " + mount_point_; }

private:
  result<void> enter(uint32_t segment) {
    const auto failed = library_.reg_fd(folder_->file(segment), 0);
    if (failed > 0)
      return fail(ec::io_failure,
                  "3FS at " + mount_point_ + " does not take a file: " + system_message(failed));
    registered_.push_back(segment);
    return {};
  }

  const hf3fs_library library_;
  const std::string mount_point_;
  const std::unique_ptr<disk_folder> folder_;
  std::vector<uint32_t> registered_;
};

tl::unexpected<error> not_on_3fs(const std::string& folder) {
  return fail(ec::unsupported,
              "key 'path': " + folder + " is not on 3FS; expected a folder below its mount point");
}

/// Where the 3FS that a folder is on is mounted.
/// @param known If it was configured.
/// @pre the folder exists
result<std::string> mount_point_of(const hf3fs_library& library, const std::string& folder,
                                   const std::string& known) {
  const auto opened = unique_fd{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!opened || !library.is_hf3fs(opened.get()))
    return not_on_3fs(folder);
  if (!known.empty())
    return known;
  auto found = std::array<char, sizeof(hf3fs_iov::mount_point)>{};
  const auto size
    = library.extract_mount_point(found.data(), static_cast<int>(found.size()), folder.c_str());
  if (size <= 0)
    return not_on_3fs(folder);
  if (static_cast<size_t>(size) > found.size())
    return fail(ec::unsupported, "key 'path': the mount point of " + folder + " is longer than "
                                   + std::to_string(found.size() - 1) + " bytes");
  return std::string{found.data()};
}

} // namespace

result<std::unique_ptr<disk_device>>
open_hf3fs_files(const std::string& folder, uint64_t segment_bytes, const hf3fs_options& options) {
  const auto library = HICACHE_TRY(load_hf3fs(options.library));
  auto opened = HICACHE_TRY(disk_folder::open(folder, segment_bytes));
  const auto mount_point = HICACHE_TRY(mount_point_of(library, folder, options.mount_point));
  auto device = std::make_unique<hf3fs_files>(library, mount_point, std::move(opened));
  HICACHE_TRY(device->start());
  return device;
}

} // namespace hicache
