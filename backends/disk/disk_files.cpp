#include "backends/disk/disk_files.hpp"

#include "backends/disk/disk_folder.hpp"
#include "base/check.hpp"
#include "base/try.hpp"
#include "base/unique_mapping.hpp"
#include "messages/disk_record.hpp"

#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

namespace hicache {

namespace {

/// Transfers under way in a channel: enough for the fastest NVMe disks, by fio.
constexpr auto uring_depth = size_t{64};

/// Memory at whole pages, which transfers that bypass the page cache need.
unique_mapping page_memory(size_t bytes) {
  auto memory = unique_mapping::create(bytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE);
  HICACHE_CHECK(memory);
  return memory;
}

/// Does each transfer when it is started.
class direct_channel final : public folder_channel {
public:
  direct_channel(const disk_folder& files, size_t bytes)
    : folder_channel(files), memory_(page_memory(bytes)) {}

  std::span<std::byte> memory() noexcept override { return memory_.bytes(); }

  completion wait() override {
    const auto ended = done_.front();
    done_.pop_front();
    return ended;
  }

  size_t depth() const noexcept override { return uring_depth; }

private:
  void start(file_transfer x) override {
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
      x.advance(static_cast<size_t>(moved));
    }
    done_.push_back({x.tag, 0});
  }

  const unique_mapping memory_;
  std::deque<completion> done_;
};

/// Transfers through io_uring.
class uring_channel final : public folder_channel {
public:
  /// @returns null if the kernel does not allow it
  static std::unique_ptr<uring_channel> open(const disk_folder& files, size_t bytes) {
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
        x.advance(static_cast<size_t>(moved));
        queue(slot);
        continue;
      }
      free_.push_back(slot);
      return {x.tag, moved > 0 ? 0 : moved == 0 ? EIO : -moved};
    }
  }

  size_t depth() const noexcept override { return uring_depth; }

private:
  uring_channel(const disk_folder& files, size_t bytes)
    : folder_channel(files), memory_(page_memory(bytes)) {
    for (auto i = size_t{0}; i < uring_depth; ++i)
      free_.push_back(i);
  }

  void start(file_transfer x) override {
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

  const unique_mapping memory_;
  io_uring ring_{};
  bool is_open_ = false;
  bool is_registered_ = false;
  std::array<file_transfer, uring_depth> transfers_;
  std::vector<size_t> free_;
};

class disk_files final : public disk_device {
public:
  disk_files(std::unique_ptr<disk_folder> folder, bool may_use_uring)
    : folder_(std::move(folder)),
      uses_uring_(may_use_uring && uring_channel::open(*folder_, disk_block_bytes)) {}

  std::vector<uint32_t> segments() const override { return folder_->segments(); }

  result<void> create(uint32_t segment) override { return folder_->create(segment); }

  result<void> remove(uint32_t segment) override { return folder_->remove(segment); }

  result<void> sync(uint32_t segment) override { return folder_->sync(segment); }

  result<std::unique_ptr<disk_channel>> open_channel(size_t bytes) override {
    if (uses_uring_)
      if (auto channel = uring_channel::open(*folder_, bytes))
        return channel;
    return std::make_unique<direct_channel>(*folder_, bytes);
  }

  std::string description() const override {
    return std::string{uses_uring_ ? "io_uring" : "threads"}
           + (folder_->bypasses_cache() ? ", O_DIRECT" : ", page cache");
  }

private:
  const std::unique_ptr<disk_folder> folder_;
  const bool uses_uring_;
};

} // namespace

result<std::unique_ptr<disk_device>> open_disk_files(const std::string& folder,
                                                     uint64_t segment_bytes, bool may_use_uring) {
  auto opened = HICACHE_TRY(disk_folder::open(folder, segment_bytes));
  return std::make_unique<disk_files>(std::move(opened), may_use_uring);
}

} // namespace hicache
