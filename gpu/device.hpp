#pragma once

#include "base/error.hpp"
#include "cache/geometry.hpp"
#include "messages/ids.hpp"
#include "messages/operations.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace hicache {

/// A block of device memory (L1) or host memory (L2), freed with the object. Pinned, not copyable.
/// The bytes are zero or unspecified at first.
class device_memory {
public:
  device_memory() = default;
  device_memory(const device_memory&) = delete;
  device_memory& operator=(const device_memory&) = delete;
  virtual ~device_memory() = default;

  /// The first byte. L1 may be dereferenced by the CPU only if the device is host_addressable(); L2
  /// always.
  virtual std::byte* data() noexcept = 0;

  /// Bytes.
  virtual uint64_t size() const noexcept = 0;

  /// Copies `bytes` to `offset` and returns when they are there. For set-up, tests and checks, not
  /// for the hot path. Any thread.
  /// @pre offset + bytes.size() <= size()
  virtual result<void> write(uint64_t offset, std::span<const std::byte> bytes) = 0;

  /// The other way round.
  /// @pre offset + bytes.size() <= size()
  virtual result<void> read(uint64_t offset, std::span<std::byte> bytes) const = 0;
};

/// Copies whole pages between one L1 pool and one L2 pool. Stores (L1 -> L2) and loads (L2 -> L1)
/// are two independent queues, each first in, first out; a store and a load that name the same
/// pages are not ordered. Its callers bound the queues: a page takes part in one copy at a time, so
/// no more can wait than there are pages.
///
/// Destroying the engine first finishes what was submitted. Both memories must outlive it.
class copy_engine {
public:
  /// Called once per operation, in issue order per direction, on a thread of the engine (on the
  /// caller's, before store or load returns, with copy_threads::none). Must not throw and must not
  /// call drain().
  using callback = std::function<void(result<void>)>;

  copy_engine() = default;
  copy_engine(const copy_engine&) = delete;
  copy_engine& operator=(const copy_engine&) = delete;
  virtual ~copy_engine() = default;

  /// Copies device_pages[i] to host_pages[i]. Any thread.
  /// @pre the lists are equally long and all their pages exist
  virtual void store(page_list device_pages, page_list host_pages, callback done) = 0;

  /// Copies host_pages[i] to device_pages[i], layer by layer. `progress` counts the complete
  /// layers; it fails if the copy fails. `done` is called after the last layer. Any thread.
  /// @pre as for store; progress is not null
  virtual void load(page_list host_pages, page_list device_pages, layer_progress_ptr progress,
                    callback done)
    = 0;

  /// Returns when everything submitted so far has finished and its callbacks have returned.
  virtual void drain() = 0;
};

/// A place where KV is computed, or host memory that stands in for one. Any thread.
class device {
public:
  device() = default;
  device(const device&) = delete;
  device& operator=(const device&) = delete;
  virtual ~device() = default;

  /// For reports: "host memory", or the name of the GPU.
  virtual std::string name() const = 0;

  /// Whether the CPU can read and write L1 memory through data().
  virtual bool host_addressable() const noexcept = 0;

  /// Memory for L1.
  /// @returns io_failure that says what was asked for and what is available.
  virtual result<std::unique_ptr<device_memory>> allocate(uint64_t bytes) = 0;

  /// Memory for L2, pinned where that means something. Errors as for allocate.
  virtual result<std::unique_ptr<device_memory>> allocate_host(uint64_t bytes) = 0;

  /// An engine between two pools that lie at the start of two memories of this device.
  /// @pre both pools have the same shape, L1 is layer_first, and each memory holds its pool
  virtual result<std::unique_ptr<copy_engine>>
  make_copy_engine(const pool_geometry& l1, device_memory& l1_memory, const pool_geometry& l2,
                   device_memory& l2_memory)
    = 0;
};

/// Which device to use. `automatic` is cuda if this build has it and a GPU answers, else host.
enum class device_kind : uint8_t { automatic, cuda, host };

/// "auto", "cuda" or "host".
/// @relates device_kind
const char* to_string(device_kind kind) noexcept;

/// @returns invalid_argument with the allowed names.
/// @relates device_kind
result<device_kind> parse_device_kind(std::string_view name);

/// Who does the copying: a thread for each direction, or the caller (for deterministic tests).
enum class copy_threads : uint8_t { none, one_per_direction };

/// @returns unsupported, with a sentence, if `cuda` is asked for and this build or machine has
/// none.
result<std::unique_ptr<device>> make_device(device_kind kind, copy_threads threads);

} // namespace hicache
