#pragma once

#include "base/host_device.hpp"
#include "cache/copy_strips.hpp"
#include "hicache/geometry.hpp"

#include <cstdint>

namespace hicache {

/// Bytes that a warp or a CPU thread copies at a time. Small enough to spread a page over all
/// warps, large enough that finding a piece is cheap compared with copying it.
inline constexpr uint64_t piece_bytes = 4096;

/// A contiguous piece of memory on both sides, at most piece_bytes long.
struct copy_piece {
  uint64_t device_address;
  uint64_t host_address;
  uint64_t bytes;
};

/// Pieces per row of the strip.
/// @relates copy_strip
HICACHE_HOST_DEVICE inline uint64_t pieces_per_row(const copy_strip& strip) {
  return (strip.row_bytes + piece_bytes - 1) / piece_bytes;
}

/// Pieces in `pages` pages of the strip.
/// @relates copy_strip
HICACHE_HOST_DEVICE inline uint64_t piece_count(const copy_strip& strip, uint64_t pages) {
  return pages * strip.rows * pieces_per_row(strip);
}

/// Piece `index` of the copy of l1_pages[i] and l2_pages[i]: page by page, row by row, front to
/// back. Used by the kernels for each warp, and by the CPU.
/// @pre index < piece_count(strip, pages in the lists)
/// @relates copy_strip
HICACHE_HOST_DEVICE inline copy_piece find_piece(const copy_strip& strip,
                                                 const page_index* l1_pages,
                                                 const page_index* l2_pages, uint64_t index) {
  const auto per_row = pieces_per_row(strip);
  const auto line = index / per_row;
  const auto begin = (index - line * per_row) * piece_bytes;
  const auto page = line / strip.rows;
  const auto row = line - page * strip.rows;
  const auto left = strip.row_bytes - begin;
  return {strip.device_address + l1_pages[page] * strip.device_page_stride
            + row * strip.device_row_stride + begin,
          strip.host_address + l2_pages[page] * strip.host_page_stride + row * strip.host_row_stride
            + begin,
          left < piece_bytes ? left : piece_bytes};
}

} // namespace hicache
