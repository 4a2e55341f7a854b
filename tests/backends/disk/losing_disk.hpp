#pragma once

#include "backends/disk/disk_device.hpp"
#include "base/check.hpp"
#include "messages/disk_record.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

namespace hicache::test {

/// What is on a disk, in memory. It outlives the devices that use it, one at a time.
class disk_image {
public:
  explicit disk_image(uint64_t segment_bytes) : segment_bytes_(segment_bytes) {}

  /// After so many further writes and syncs the power fails: later ones fail, and nothing changes
  /// any more.
  void fail_after(uint64_t operations) { operations_left_ = operations; }

  bool has_power() const noexcept { return operations_left_ > 0; }

  /// Segments for which there is room.
  void set_room(size_t segments) { room_ = segments; }

  /// Syncs fail with this errno value from now on; 0: they work.
  void set_sync_error(int error) { sync_error_ = error; }

  /// As above, of reads.
  void set_read_error(int error) { read_error_ = error; }

  /// As above, of writes, which then do nothing.
  void set_write_error(int error) { write_error_ = error; }

  /// Called with each read and write, before it.
  void set_watch(std::function<void()> watch) { watch_ = std::move(watch); }

  /// Which of the next writes fail without doing anything.
  void refuse_writes(std::deque<bool> refused) { refused_ = std::move(refused); }

  std::vector<std::byte>& bytes_of(uint32_t segment) { return segments_.at(segment).current; }

  /// Power fails and comes back: of what was not synced, each sector may be old or new, or what was
  /// written to it in between.
  void lose_power(std::mt19937_64& random) {
    for (auto& [number, segment] : segments_) {
      for (const auto& write : segment.unsynced)
        for (auto at = size_t{0}; at < write.bytes.size(); at += sector_bytes)
          if (random() % 2 == 0)
            std::memcpy(&segment.durable[write.offset + at], &write.bytes[at], sector_bytes);
      segment.unsynced.clear();
      segment.current = segment.durable;
    }
    operations_left_ = UINT64_MAX;
  }

  uint64_t written_bytes() const noexcept { return written_; }

  // -- for devices ----------------------------------------------------------------

  std::vector<uint32_t> segments() const {
    auto numbers = std::vector<uint32_t>{};
    for (const auto& [number, segment] : segments_)
      numbers.push_back(number);
    return numbers;
  }

  result<void> create(uint32_t number) {
    if (segments_.size() >= room_)
      return fail(ec::store_full, "the disk is full");
    if (!take_operation())
      return fail(ec::io_failure, "no power");
    const auto zeros = std::vector<std::byte>(segment_bytes_);
    segments_[number] = {zeros, zeros, {}};
    return {};
  }

  void remove(uint32_t number) { segments_.erase(number); }

  /// Call it without the lock.
  void begin_transfer() const {
    if (watch_)
      watch_();
  }

  int read(uint32_t number, uint64_t offset, std::span<std::byte> to) {
    if (!has_power() || read_error_ != 0)
      return EIO;
    const auto& from = segments_.at(number).current;
    check_blocks(offset, to.size());
    std::memcpy(to.data(), &from[offset], to.size());
    return 0;
  }

  int write(uint32_t number, uint64_t offset, std::span<const std::byte> from) {
    check_blocks(offset, from.size());
    if (write_error_ != 0)
      return write_error_;
    if (!refused_.empty()) {
      const auto is_refused = refused_.front();
      refused_.pop_front();
      if (is_refused)
        return EIO;
    }
    auto& segment = segments_.at(number);
    // The last one before the power fails may have been carried out in part.
    if (has_power())
      segment.unsynced.push_back({offset, {from.begin(), from.end()}});
    if (!take_operation())
      return EIO;
    std::memcpy(&segment.current[offset], from.data(), from.size());
    written_ += from.size();
    return 0;
  }

  result<void> sync(uint32_t number) {
    if (!take_operation() || sync_error_ != 0)
      return fail(ec::io_failure, "the disk does not sync");
    auto& segment = segments_.at(number);
    segment.durable = segment.current;
    segment.unsynced.clear();
    return {};
  }

private:
  static constexpr auto sector_bytes = size_t{512};

  struct unsynced_write {
    uint64_t offset = 0;
    std::vector<std::byte> bytes;
  };

  struct segment_image {
    std::vector<std::byte> durable;
    std::vector<std::byte> current;
    std::vector<unsynced_write> unsynced;
  };

  bool take_operation() {
    if (operations_left_ == 0)
      return false;
    --operations_left_;
    return operations_left_ > 0;
  }

  void check_blocks(uint64_t offset, size_t bytes) const {
    HICACHE_CHECK(offset % disk_block_bytes == 0 && bytes % disk_block_bytes == 0
                  && offset + bytes <= segment_bytes_);
  }

  const uint64_t segment_bytes_;
  std::map<uint32_t, segment_image> segments_;
  size_t room_ = SIZE_MAX;
  uint64_t operations_left_ = UINT64_MAX;
  int sync_error_ = 0;
  std::deque<bool> refused_;
  int read_error_ = 0;
  int write_error_ = 0;
  std::function<void()> watch_;
  uint64_t written_ = 0;
};

/// A test double: a disk that loses what was not synced. Any thread.
class losing_disk final : public disk_device {
public:
  explicit losing_disk(disk_image& image) : image_(image) {}

  std::vector<uint32_t> segments() const override {
    const auto lock = std::scoped_lock{mutex_};
    return image_.segments();
  }

  result<void> create(uint32_t segment) override {
    const auto lock = std::scoped_lock{mutex_};
    return image_.create(segment);
  }

  result<void> remove(uint32_t segment) override {
    const auto lock = std::scoped_lock{mutex_};
    image_.remove(segment);
    return {};
  }

  result<void> sync(uint32_t segment) override {
    const auto lock = std::scoped_lock{mutex_};
    return image_.sync(segment);
  }

  result<std::unique_ptr<disk_channel>> open_channel(size_t bytes) override {
    return std::make_unique<channel>(*this, bytes);
  }

  std::string description() const override { return "test"; }

private:
  /// Answers the last one first.
  class channel final : public disk_channel {
  public:
    channel(losing_disk& disk, size_t bytes) : disk_(disk), memory_(bytes) {}

    std::span<std::byte> memory() noexcept override { return memory_; }

    void read(uint32_t segment, uint64_t offset, std::span<std::byte> to, uint64_t tag) override {
      disk_.image_.begin_transfer();
      const auto lock = std::scoped_lock{disk_.mutex_};
      done_.push_back({tag, disk_.image_.read(segment, offset, to)});
    }

    void write(uint32_t segment, uint64_t offset, std::span<const std::byte> from,
               uint64_t tag) override {
      disk_.image_.begin_transfer();
      const auto lock = std::scoped_lock{disk_.mutex_};
      done_.push_back({tag, disk_.image_.write(segment, offset, from)});
    }

    completion wait() override {
      const auto last = done_.back();
      done_.pop_back();
      return last;
    }

    size_t depth() const noexcept override { return 4; }

  private:
    losing_disk& disk_;
    std::vector<std::byte> memory_;
    std::vector<completion> done_;
  };

  disk_image& image_;
  mutable std::mutex mutex_; // Guards the image.
};

} // namespace hicache::test
