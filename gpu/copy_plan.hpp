#pragma once

#include "cache/geometry.hpp"
#include "messages/ids.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace hicache {

/// `rows` pieces of `row_bytes` bytes each, to be copied between L1 and L2: the shape of one
/// cudaMemcpy2D.
struct row_copy {
  uint64_t device_offset = 0;
  uint64_t device_stride = 0;
  uint64_t host_offset = 0;
  uint64_t host_stride = 0;
  uint64_t row_bytes = 0;
  uint64_t rows = 0;

  friend bool operator==(const row_copy&, const row_copy&) = default;
};

/// The copies that move one layer of whole pages, the same ones for both directions. Neighbouring
/// pieces are joined: where both sides are contiguous a copy has a single row, across pages too.
/// @param copies Is overwritten; handed in so that its memory can be reused.
/// @pre the lists are equally long and their pages exist
void plan_layer_copy(const pool_geometry& l1, const pool_geometry& l2, uint32_t layer,
                     std::span<const page_index> device_pages,
                     std::span<const page_index> host_pages, std::vector<row_copy>& copies);

} // namespace hicache
