#pragma once

#include "hicache/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// Transfers between segments and memory of its own, several at a time. One thread at a time.
class disk_channel {
public:
  struct completion {
    uint64_t tag = 0;
    /// An errno value, or 0: all bytes were transferred.
    int error = 0;
  };

  virtual ~disk_channel() = default;

  /// The memory of all transfers, at whole blocks.
  virtual std::span<std::byte> memory() noexcept = 0;

  /// Starts a transfer of whole blocks.
  /// @pre fewer than `depth` are under way; bytes lie in memory(); the segment exists
  virtual void read(uint32_t segment, uint64_t offset, std::span<std::byte> to, uint64_t tag) = 0;
  virtual void write(uint32_t segment, uint64_t offset, std::span<const std::byte> from,
                     uint64_t tag)
    = 0;

  /// Waits for one of the transfers to end.
  /// @pre one is under way
  virtual completion wait() = 0;

  virtual size_t depth() const noexcept = 0;
};

/// The segments of a disk store: numbered extents of equal size. Any thread; calls that create and
/// remove, one at a time.
class disk_device {
public:
  virtual ~disk_device() = default;

  /// Segments that exist, in order.
  virtual std::vector<uint32_t> segments() const = 0;

  /// Creates a segment with room for all of its bytes.
  /// @returns store_full; io_failure
  virtual result<void> create(uint32_t segment) = 0;

  /// Removes a segment.
  virtual result<void> remove(uint32_t segment) = 0;

  /// Waits until everything written to the segment so far is on the disk.
  virtual result<void> sync(uint32_t segment) = 0;

  /// @param bytes Of its memory.
  /// @returns io_failure
  virtual result<std::unique_ptr<disk_channel>> open_channel(size_t bytes) = 0;

  /// How it transfers, for people: "io_uring, O_DIRECT".
  virtual std::string description() const = 0;
};

} // namespace hicache
