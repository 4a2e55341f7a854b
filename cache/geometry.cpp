#include "cache/geometry.hpp"

#include "base/check.hpp"

#include <string>

namespace hicache {

const char* to_string(host_layout layout) noexcept {
  switch (layout) {
    case host_layout::layer_first:
      return "layer_first";
    case host_layout::page_first:
      return "page_first";
    case host_layout::page_first_direct:
      return "page_first_direct";
  }
  return "unknown";
}

result<host_layout> parse_host_layout(std::string_view name) {
  for (const auto layout :
       {host_layout::layer_first, host_layout::page_first, host_layout::page_first_direct})
    if (name == to_string(layout))
      return layout;
  return fail(ec::invalid_argument, "'" + std::string{name}
                                      + "' is not a memory layout; expected layer_first, "
                                        "page_first or page_first_direct");
}

pool_geometry::pool_geometry(const pool_shape& shape, host_layout layout, uint32_t pages)
  : shape_(shape), layout_(layout), pages_(pages) {
  HICACHE_CHECK(shape.layers > 0 && shape.kv_heads > 0 && shape.head_dim > 0);
  HICACHE_CHECK(shape.v_head_dim > 0 && shape.element_bytes > 0 && shape.page_size > 0);
  HICACHE_CHECK(pages > 0);
}

uint64_t pool_geometry::row_bytes(kv_half half) const noexcept {
  const auto dim = half == kv_half::key ? shape_.head_dim : shape_.v_head_dim;
  return uint64_t{shape_.kv_heads} * dim * shape_.element_bytes;
}

uint64_t pool_geometry::page_bytes() const noexcept {
  return (row_bytes(kv_half::key) + row_bytes(kv_half::value)) * shape_.layers * shape_.page_size;
}

strided_run pool_geometry::rows(uint32_t layer, kv_half half, page_index page) const noexcept {
  HICACHE_CHECK(layer < shape_.layers && page < pages_);
  const auto row = row_bytes(half);
  const auto tokens = uint64_t{shape_.page_size};
  // Bytes of all keys that precede the values in the unit that `half` splits: the pool or one page.
  const auto half_offset
    = half == kv_half::key ? 0 : row_bytes(kv_half::key) * shape_.layers * tokens;
  switch (layout_) {
    case host_layout::layer_first:
      return {half_offset * pages_ + (uint64_t{layer} * pages_ + page) * tokens * row, row, row,
              tokens};
    case host_layout::page_first:
      return {page * page_bytes() + half_offset + layer * row, row, row * shape_.layers, tokens};
    case host_layout::page_first_direct:
      return {page * page_bytes() + half_offset + layer * tokens * row, row, row, tokens};
  }
  return {};
}

std::vector<byte_run> pool_geometry::object_runs(page_index page) const {
  if (layout_ != host_layout::layer_first)
    return {{page * page_bytes(), page_bytes()}};
  auto runs = std::vector<byte_run>{};
  runs.reserve(size_t{2} * shape_.layers);
  for (const auto half : {kv_half::key, kv_half::value})
    for (auto layer = uint32_t{0}; layer < shape_.layers; ++layer) {
      const auto part = rows(layer, half, page);
      runs.push_back({part.offset, part.row_bytes * part.rows});
    }
  return runs;
}

std::string pool_geometry::object_fingerprint() const {
  return "mha layers=" + std::to_string(shape_.layers) + " head_dim="
         + std::to_string(shape_.head_dim) + " v_head_dim=" + std::to_string(shape_.v_head_dim)
         + " element_bytes=" + std::to_string(shape_.element_bytes)
         + " page_size=" + std::to_string(shape_.page_size)
         + (layout_ == host_layout::page_first ? " order=token,layer" : " order=layer,token");
}

} // namespace hicache
