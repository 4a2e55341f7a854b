#pragma once

#include "c_abi/block_table.hpp"
#include "hicache/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace hicache {

/// A point among the copies that are queued on a device: when it has passed, those before it are
/// done. Null is one that has passed.
using device_mark = std::shared_ptr<void>;

/// Copies between blocks that the CPU cannot reach and pages in host memory. Any thread. What fails
/// is an io_failure with what the device said; then nothing of that call is written any more.
class block_device {
public:
  block_device() = default;

  block_device(const block_device&) = delete;

  block_device& operator=(const block_device&) = delete;

  virtual ~block_device() = default;

  /// Copies of stores that begin later wait for a native event that was recorded. It may be used
  /// again when this returns.
  virtual result<void> wait_for(void* event) = 0;

  /// Copies the parts of a page, which lie in blocks, and returns when they are there.
  virtual result<void> store(std::span<const std::span<const std::byte>> parts,
                             std::span<std::byte> page)
    = 0;

  /// Queues copies from a page, which stays until a mark behind them has passed.
  virtual result<void> queue_load(std::span<const std::byte> page,
                                  std::span<const block_piece> pieces)
    = 0;

  /// Marks what loads have queued by now.
  virtual result<device_mark> mark() = 0;

  /// Returns when a mark has passed.
  virtual result<void> finish(const device_mark& mark) = 0;

  /// What is queued on a native stream from now on waits for a mark.
  virtual result<void> have_wait(void* stream, const device_mark& mark) = 0;
};

/// @param number In the numbering of CUDA.
/// @returns unsupported if this build or machine has none; io_failure
result<std::unique_ptr<block_device>> open_block_device(int32_t number);

} // namespace hicache
