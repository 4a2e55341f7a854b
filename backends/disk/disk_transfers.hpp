#pragma once

#include "backends/disk/disk_device.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

/// Transfers of many bytes through the memory of a channel, a part of which is a slot. As many
/// slots as fit are under way at once.
namespace hicache {

/// Bytes of a slot: with these a disk is as fast as with more.
inline constexpr size_t disk_slot_bytes = size_t{1} << 20;

/// Memory of a channel: eight slots, or 64 with a transfer of an object of 64 KiB each.
inline constexpr size_t disk_channel_bytes = 8 * disk_slot_bytes;

/// Blocks of a segment that one transfer reads.
struct disk_extent {
  uint32_t segment = 0;
  uint64_t offset = 0;
  /// At most disk_slot_bytes.
  size_t bytes = 0;
};

/// Reads extents, and hands them over in their order.
/// @param take Gets the number of the extent, its bytes, and an errno value or 0. The bytes are
/// valid during the call.
void read_extents(
  disk_channel& channel, std::span<const disk_extent> extents,
  const std::function<void(size_t extent, std::span<const std::byte> bytes, int error)>& take);

/// Writes bytes to a segment, one behind the other.
class disk_writer {
public:
  /// @pre no transfer is under way in the channel
  disk_writer(disk_channel& channel, uint32_t segment, uint64_t offset)
    : channel_(channel), segment_(segment), offset_(offset),
      busy_(channel.memory().size() / disk_slot_bytes) {}

  /// Memory for the next bytes, at least one. Waits until there is some.
  std::span<std::byte> room();

  /// So many bytes of the room were filled.
  void filled(size_t bytes);

  /// Fills up the block with zeros.
  void pad();

  /// What follows goes to another place.
  /// @pre the bytes so far are whole blocks
  void seek(uint64_t offset);

  /// Waits for all bytes so far, which are whole blocks.
  /// @returns an errno value, or 0
  int finish();

private:
  void flush();
  void wait_for_one();

  disk_channel& channel_;
  const uint32_t segment_;
  /// Of the slot's first byte.
  uint64_t offset_;
  std::vector<bool> busy_;
  size_t under_way_ = 0;
  size_t slot_ = 0;
  size_t fill_ = 0;
  int error_ = 0;
};

} // namespace hicache
