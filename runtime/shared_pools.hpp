#pragma once

#include "backends/cluster/exported_pages.hpp"
#include "hicache/error.hpp"
#include "hicache/geometry.hpp"
#include "transport/shared_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace hicache {

/// A rank's segment and its L2 in one shared mapping, so that peers can read pages of L2 in place:
/// the segment, a header per object of L2, then L2 at a machine page boundary.
struct shared_pools {
  shared_memory memory;
  std::shared_ptr<exported_pages> exported;

  /// The memory of L2.
  std::span<std::byte> l2() const;

  /// Allocates the memory. Segment and headers are made resident; the caller makes L2 resident.
  /// @param segment_bytes May be 0; rounded down to whole cache lines.
  /// @param heads Per object.
  /// @returns io_failure with a sentence
  /// @pre an object of `l2` is contiguous
  static result<shared_pools> create(uint64_t segment_bytes, const pool_geometry& l2,
                                     uint32_t heads);
};

} // namespace hicache
