#pragma once

#include "examples/llama/checkpoint.hpp"
#include "hicache/geometry.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace llama {

/// One head of K or V in a page as a matrix of floats: row t is token t of the page.
struct page_matrix {
  const float* data = nullptr;
  /// Floats between rows.
  uint32_t stride = 0;
};

/// K and V in L1's pages, located by hicache's geometry. Owns only a scratch buffer of a page and
/// head.
class paged_kv {
public:
  /// @param pool In host memory: rank_runtime::device_buffers().
  paged_kv(hicache::device_layers pool, number_format format);

  uint32_t page_size() const noexcept { return pool_.shape.page_size; }

  /// Writes the heads of one token, which are contiguous.
  void write(uint32_t layer, hicache::kv_part part, hicache::page_index page, uint32_t row,
             const float* heads);

  /// One head of the first `rows` tokens of a page. Floats are returned in place; narrower numbers
  /// are widened into the scratch buffer, valid until the next call.
  page_matrix read(uint32_t layer, hicache::kv_part part, hicache::page_index page, uint32_t head,
                   uint32_t rows);

private:
  std::byte* row_of(uint32_t layer, hicache::kv_part part, hicache::page_index page,
                    uint32_t row) const;

  hicache::device_layers pool_;
  number_format format_;
  std::vector<float> scratch_;
};

/// Parses a --dtype that this engine supports.
/// @returns invalid_argument with the allowed names.
result<number_format> parse_kv_format(std::string_view dtype);

} // namespace llama
