#pragma once

#include "hicache/geometry.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

/// Pools as plain vectors, addressed byte by byte from the definition of the layouts: the slow
/// reference that copies are compared with. It takes types from cache/geometry, but no arithmetic.
namespace hicache::test {

inline std::vector<std::byte> random_bytes(size_t count, std::mt19937_64& random) {
  auto bytes = std::vector<std::byte>(count);
  for (auto at = size_t{0}; at < count; at += sizeof(uint64_t)) {
    const auto eight = uint64_t{random()};
    std::memcpy(bytes.data() + at, &eight, std::min(sizeof eight, count - at));
  }
  return bytes;
}

/// One byte of one token's row.
struct byte_position {
  uint64_t part = 0;
  uint64_t layer = 0;
  uint64_t page = 0;
  uint64_t token = 0;
  /// Within the row, all heads.
  uint64_t byte = 0;
};

inline uint64_t reference_parts(const pool_shape& shape) {
  return shape.attention == attention_kind::mla ? 1 : 2;
}

inline uint64_t reference_row_bytes(const pool_shape& shape, uint64_t part) {
  if (part == 0)
    return uint64_t{shape.kv_heads} * shape.head_dim * shape.element_bytes;
  if (shape.attention == attention_kind::mha)
    return uint64_t{shape.kv_heads} * shape.v_head_dim * shape.element_bytes;
  return shape.index_key_bytes;
}

/// Bytes of the rows of one token in one layer, over the parts before `end`.
inline uint64_t reference_bytes_before(const pool_shape& shape, uint64_t end) {
  auto bytes = uint64_t{0};
  for (auto part = uint64_t{0}; part < end; ++part)
    bytes += reference_row_bytes(shape, part);
  return bytes;
}

inline uint64_t reference_page_bytes(const pool_shape& shape) {
  return reference_bytes_before(shape, reference_parts(shape)) * shape.layers * shape.page_size;
}

/// Where a byte lies in a pool of the given layout, from the start of the pool.
inline uint64_t reference_address(const pool_shape& s, host_layout layout, uint64_t pages,
                                  const byte_position& at) {
  const auto row = reference_row_bytes(s, at.part);
  const auto before = reference_bytes_before(s, at.part);
  const auto rows_of_page = uint64_t{s.layers} * s.page_size;
  const auto page_start = at.page * reference_page_bytes(s);
  const auto token_in_layer = at.layer * s.page_size + at.token;
  switch (layout) {
    case host_layout::layer_first:
      return before * rows_of_page * pages
             + ((at.layer * pages + at.page) * s.page_size + at.token) * row + at.byte;
    case host_layout::page_first:
      return page_start + before * rows_of_page + (at.token * s.layers + at.layer) * row + at.byte;
    case host_layout::page_first_direct:
      return page_start + before * rows_of_page + token_in_layer * row + at.byte;
    case host_layout::page_head:
      break;
  }
  // Each head is a page of its own with rows of one head. Latents and index keys know no heads.
  auto one_head = s;
  one_head.kv_heads = 1;
  const auto head_row = reference_row_bytes(one_head, at.part);
  const auto head = at.byte / head_row;
  return page_start + head * reference_page_bytes(one_head)
         + reference_bytes_before(one_head, at.part) * rows_of_page + token_in_layer * head_row
         + at.byte % head_row;
}

/// How the L1 pool of a test lies.
/// - packed: as hicache lays it out.
/// - interleaved: layer, page, token, part, with unused bytes behind each row, each token and each
/// page, as an engine may have it.
enum class l1_form { packed, interleaved };

/// An L1 pool by the addresses of its bytes.
class reference_l1 {
public:
  reference_l1(const pool_shape& shape, uint32_t pages, l1_form form)
    : shape_(shape), pages_(pages), form_(form) {}

  uint32_t pages() const { return pages_; }

  uint64_t bytes() const {
    return form_ == l1_form::packed ? pages_ * reference_page_bytes(shape_)
                                    : shape_.layers * layer_stride();
  }

  /// From the start of the memory.
  uint64_t address(const byte_position& at) const {
    if (form_ == l1_form::packed)
      return reference_address(shape_, host_layout::layer_first, pages_, at);
    return at.layer * layer_stride() + at.page * page_stride() + at.token * token_stride()
           + reference_bytes_before(shape_, at.part) + at.part * row_gap + at.byte;
  }

  /// What an engine registers of it, if its memory starts at `base`.
  device_layers layers(uint64_t base) const {
    auto registered = device_layers{shape_, pages_, {}};
    for (auto part = uint64_t{0}; part < reference_parts(shape_); ++part)
      for (auto layer = uint64_t{0}; layer < shape_.layers; ++layer) {
        const auto packed = form_ == l1_form::packed;
        const auto row = reference_row_bytes(shape_, part);
        registered.buffers.push_back({base + address({.part = part, .layer = layer}),
                                      packed ? row * shape_.page_size : page_stride(),
                                      packed ? row : token_stride()});
      }
    return registered;
  }

private:
  // Multiples of the element size, as an engine's would be, but of no more.
  static constexpr uint64_t row_gap = 12;
  static constexpr uint64_t page_gap = 20;

  uint64_t token_stride() const {
    const auto parts = reference_parts(shape_);
    return reference_bytes_before(shape_, parts) + parts * row_gap;
  }

  uint64_t page_stride() const { return token_stride() * shape_.page_size + page_gap; }

  uint64_t layer_stride() const { return page_stride() * pages_; }

  pool_shape shape_;
  uint32_t pages_;
  l1_form form_;
};

/// Calls `visit` for each byte of the given layers of one page, with its part, layer, token and
/// byte set.
template <class Visit>
void for_each_byte(const pool_shape& shape, uint64_t first_layer, uint64_t end_layer, Visit visit) {
  auto at = byte_position{};
  for (at.part = 0; at.part < reference_parts(shape); ++at.part)
    for (at.layer = first_layer; at.layer < end_layer; ++at.layer)
      for (at.token = 0; at.token < shape.page_size; ++at.token)
        for (at.byte = 0; at.byte < reference_row_bytes(shape, at.part); ++at.byte)
          visit(at);
}

} // namespace hicache::test
