#pragma once

#include "hicache/geometry.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <span>
#include <vector>

/// What a copy between L1 and L2 moves, as addresses.
namespace hicache {

/// All rows of one column of one part of one layer, in L1 and L2: the unit in which the two
/// correspond. Row r of a page is at address + page * page_stride + r * row_stride. If both sides
/// are contiguous within a page, the page is a single row.
struct copy_strip {
  uint64_t device_address = 0;
  uint64_t device_page_stride = 0;
  uint64_t device_row_stride = 0;
  uint64_t host_address = 0;
  uint64_t host_page_stride = 0;
  uint64_t host_row_stride = 0;
  uint64_t row_bytes = 0;
  /// Rows per page.
  uint32_t rows = 0;
  /// The largest power of two, 16 at most, that divides all addresses, strides and lengths above.
  uint32_t word_bytes = 0;

  friend bool operator==(const copy_strip&, const copy_strip&) = default;
};

/// Maps pages of `l1` to pages of `l2`, layer by layer: the strips of layer l are those from l * n
/// to (l + 1) * n, with n = size / layers.
/// @param l2_address Start of the memory of l2.
/// @pre both have the same shape
std::vector<copy_strip> make_copy_strips(const device_layers& l1, const pool_geometry& l2,
                                         uint64_t l2_address);

/// `rows` pieces of `row_bytes` bytes on each side: the shape of one cudaMemcpy2D.
struct row_copy {
  uint64_t device_address = 0;
  uint64_t device_stride = 0;
  uint64_t host_address = 0;
  uint64_t host_stride = 0;
  uint64_t row_bytes = 0;
  uint64_t rows = 0;

  friend bool operator==(const row_copy&, const row_copy&) = default;
};

/// Appends the copies that move whole pages of these strips; they are the same for both directions.
/// Merges adjacent pieces: where both sides are contiguous a copy has one row, even across pages.
/// @pre the lists are equally long and their pages exist
void append_copies(std::span<const copy_strip> strips, std::span<const page_index> l1_pages,
                   std::span<const page_index> l2_pages, std::vector<row_copy>& copies);

} // namespace hicache
