#include "backends/disk/disk_transfers.hpp"

#include "base/check.hpp"
#include "messages/disk_record.hpp"

#include <algorithm>
#include <cstring>

namespace hicache {

void read_extents(
  disk_channel& channel, std::span<const disk_extent> extents,
  const std::function<void(size_t extent, std::span<const std::byte> bytes, int error)>& take) {
  if (extents.empty())
    return;
  const auto slot_bytes = std::ranges::max(extents, {}, &disk_extent::bytes).bytes;
  HICACHE_CHECK(slot_bytes <= channel.memory().size());
  const auto slots = std::min(channel.memory().size() / slot_bytes, channel.depth());
  HICACHE_CHECK(slots > 0);
  const auto memory_of = [&](size_t extent) {
    return channel.memory().subspan(extent % slots * slot_bytes, extents[extent].bytes);
  };
  auto ended = std::vector<std::optional<int>>(slots);
  auto started = size_t{0};
  for (auto i = size_t{0}; i < extents.size(); ++i) {
    for (; started < extents.size() && started < i + slots; ++started)
      channel.read(extents[started].segment, extents[started].offset, memory_of(started),
                   started % slots);
    auto& outcome = ended[i % slots];
    while (!outcome) {
      const auto completion = channel.wait();
      ended[completion.tag] = completion.error;
    }
    take(i, memory_of(i), *outcome);
    outcome.reset();
  }
}

std::span<std::byte> disk_writer::room() {
  while (busy_[slot_])
    wait_for_one();
  return channel_.memory().subspan(slot_ * disk_slot_bytes + fill_, disk_slot_bytes - fill_);
}

void disk_writer::filled(size_t bytes) {
  fill_ += bytes;
  if (fill_ == disk_slot_bytes)
    flush();
}

void disk_writer::pad() {
  const auto rest = disk_blocks_for(fill_) - fill_;
  if (rest == 0)
    return;
  std::memset(room().data(), 0, rest);
  filled(rest);
}

void disk_writer::seek(uint64_t offset) {
  flush();
  offset_ = offset;
}

int disk_writer::finish() {
  flush();
  while (under_way_ > 0)
    wait_for_one();
  return error_;
}

void disk_writer::flush() {
  if (fill_ == 0)
    return;
  HICACHE_CHECK(fill_ % disk_block_bytes == 0);
  channel_.write(segment_, offset_, channel_.memory().subspan(slot_ * disk_slot_bytes, fill_),
                 slot_);
  busy_[slot_] = true;
  ++under_way_;
  offset_ += fill_;
  slot_ = (slot_ + 1) % busy_.size();
  fill_ = 0;
}

void disk_writer::wait_for_one() {
  const auto ended = channel_.wait();
  busy_[ended.tag] = false;
  --under_way_;
  if (error_ == 0)
    error_ = ended.error;
}

} // namespace hicache
