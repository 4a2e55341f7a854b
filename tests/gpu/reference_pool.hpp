#pragma once

#include "cache/geometry.hpp"

#include <cstddef>
#include <random>
#include <vector>

/// Pools as plain vectors, addressed byte by byte from the definition of the layouts: the slow
/// reference that copies are compared with. It shares no code with cache/geometry.
namespace hicache::test {

inline std::vector<std::byte> random_bytes(size_t count, std::mt19937_64& random) {
  auto bytes = std::vector<std::byte>(count);
  for (auto& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

struct byte_position {
  uint64_t half = 0;
  uint64_t layer = 0;
  uint64_t page = 0;
  uint64_t token = 0;
  /// Byte within the token's row.
  uint64_t byte = 0;
};

inline uint64_t reference_row_bytes(const pool_shape& shape, uint64_t half) {
  return uint64_t{shape.kv_heads} * (half == 0 ? shape.head_dim : shape.v_head_dim)
         * shape.element_bytes;
}

inline uint64_t reference_address(const pool_shape& s, host_layout layout, uint64_t pages,
                                  const byte_position& at) {
  const auto row = reference_row_bytes(s, at.half);
  const auto key_row = reference_row_bytes(s, 0);
  const auto rows_of_page = uint64_t{s.layers} * s.page_size;
  if (layout == host_layout::layer_first) {
    const auto half_start = at.half * key_row * rows_of_page * pages;
    return half_start + ((at.layer * pages + at.page) * s.page_size + at.token) * row + at.byte;
  }
  const auto page_start = at.page * rows_of_page * (key_row + reference_row_bytes(s, 1));
  const auto half_start = page_start + at.half * key_row * rows_of_page;
  const auto row_number = layout == host_layout::page_first ? at.token * s.layers + at.layer
                                                            : at.layer * s.page_size + at.token;
  return half_start + row_number * row + at.byte;
}

/// Calls `visit` for each byte of the given layers of one page, with its half, layer, token and
/// byte set.
template <class Visit>
void for_each_byte(const pool_shape& shape, uint64_t first_layer, uint64_t end_layer, Visit visit) {
  auto at = byte_position{};
  for (at.half = 0; at.half < 2; ++at.half)
    for (at.layer = first_layer; at.layer < end_layer; ++at.layer)
      for (at.token = 0; at.token < shape.page_size; ++at.token)
        for (at.byte = 0; at.byte < reference_row_bytes(shape, at.half); ++at.byte)
          visit(at);
}

/// Copies pages between two pools of any layouts.
inline void reference_copy(const pool_geometry& from_pool, const std::vector<std::byte>& from,
                           const std::vector<page_index>& from_pages, const pool_geometry& to_pool,
                           std::vector<std::byte>& to, const std::vector<page_index>& to_pages) {
  const auto& shape = from_pool.shape();
  for (auto i = size_t{0}; i < from_pages.size(); ++i)
    for_each_byte(shape, 0, shape.layers, [&](byte_position at) {
      at.page = from_pages[i];
      const auto source = reference_address(shape, from_pool.layout(), from_pool.pages(), at);
      at.page = to_pages[i];
      to[reference_address(shape, to_pool.layout(), to_pool.pages(), at)] = from[source];
    });
}

} // namespace hicache::test
