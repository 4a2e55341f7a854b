#pragma once

#include "hicache/storage_backend.hpp"

#include <cstdint>
#include <functional>
#include <vector>

namespace hicache {

/// Reads of objects whose lengths the reader does not know, because they were compressed. A store
/// that can tell lengths implements this beside storage_backend.
class sized_reads {
public:
  using sizes_done = std::function<void(std::vector<result<uint64_t>>)>;

  virtual ~sized_reads() = default;

  /// Whether `read_sized` works. Constant over the store's lifetime.
  virtual bool tells_lengths() const = 0;

  /// As storage_backend::read, without progress; but the parts of an object may be longer than it.
  /// Its bytes fill their beginning, and `done` receives its length. invalid_argument: the object
  /// is longer than its parts.
  virtual storage_backend::batch_number read_sized(store_batch<page_read> pages,
                                                   time_point deadline, sizes_done done)
    = 0;
};

/// The sized reads of a store; null if it does not tell lengths.
/// @relates sized_reads
inline sized_reads* sized_reads_of(storage_backend& store) {
  auto* const reads = dynamic_cast<sized_reads*>(&store);
  return reads != nullptr && reads->tells_lengths() ? reads : nullptr;
}

} // namespace hicache
