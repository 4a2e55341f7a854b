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

/// A rank's segment and its L2 in one piece of memory that peers can map, so that pages of L2 can
/// be exported: the segment, a header for each object of L2, and L2 from a page of the machine on.
struct shared_pools {
  shared_memory memory;
  std::shared_ptr<exported_pages> exported;

  /// Where L2 lies.
  std::span<std::byte> l2() const;

  /// Takes the memory. Segment and headers are resident; L2 has to be made so.
  /// @param segment_bytes May be 0; whole cache lines of it are used.
  /// @param heads In one object.
  /// @returns io_failure with a sentence
  /// @pre an object of `l2` is one run
  static result<shared_pools> create(uint64_t segment_bytes, const pool_geometry& l2,
                                     uint32_t heads);
};

} // namespace hicache
