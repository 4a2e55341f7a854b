#pragma once

#include "base/immovable.hpp"
#include "c_abi/block_table.hpp"
#include "hicache/error.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace hicache {

/// A point in a device's copy queue; once passed, all copies before it are done. Null has passed.
using device_mark = std::shared_ptr<void>;

/// Copies between blocks that the CPU cannot access and pages in host memory. Any thread. Failures
/// are an io_failure with the device's message; after one, the call writes nothing more.
class block_device : immovable {
public:
  virtual ~block_device() = default;

  /// Makes later stores wait for a recorded native event, which may be reused when this returns.
  virtual result<void> wait_for(void* event) = 0;

  /// Copies the parts of a page, which lie in blocks, to `page`, and waits for the copies.
  virtual result<void> store(std::span<const std::span<const std::byte>> parts,
                             std::span<std::byte> page)
    = 0;

  /// Queues copies from a page, which must stay valid until a later mark has passed.
  virtual result<void> queue_load(std::span<const std::byte> page,
                                  std::span<const block_piece> pieces)
    = 0;

  /// Marks all load copies queued so far.
  virtual result<device_mark> mark() = 0;

  /// Waits until a mark has passed.
  virtual result<void> finish(const device_mark& mark) = 0;

  /// Makes work queued on a native stream from now on wait for a mark.
  virtual result<void> have_wait(void* stream, const device_mark& mark) = 0;
};

/// @param number CUDA device number.
/// @returns unsupported if this build or machine has no such device; io_failure
result<std::unique_ptr<block_device>> open_block_device(int32_t number);

} // namespace hicache
