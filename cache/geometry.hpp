#pragma once

#include "base/error.hpp"
#include "messages/ids.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace hicache {

/// How a rank's KV is shaped. MHA: each token has, per layer, one K row of `kv_heads * head_dim`
/// elements and one V row of `kv_heads * v_head_dim` elements.
struct pool_shape {
  uint32_t layers = 0;
  /// Heads of this rank (the model's heads divided by the ranks).
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t v_head_dim = 0;
  /// Bytes of one element: 1 (fp8), 2 (fp16, bf16) or 4 (fp32).
  uint32_t element_bytes = 0;
  /// Tokens per page.
  uint32_t page_size = 0;

  friend bool operator==(const pool_shape&, const pool_shape&) = default;
};

/// The two halves of a layer's KV.
enum class kv_half : uint8_t { key = 0, value = 1 };

/// Memory layouts of L2 (seed 000, "Batch-Oriented Data Organization"). Outermost dimension first:
/// - layer_first: half, layer, page, token: what the GPU computes on. A page is scattered over 2 *
/// layers runs.
/// - page_first: page, half, token, layer: a page is one object; one layer of one token is one run.
/// - page_first_direct: page, half, layer, token: a page is one object; one layer of a page is one
/// run.
enum class host_layout : uint8_t { layer_first, page_first, page_first_direct };

/// @relates host_layout
const char* to_string(host_layout layout) noexcept;

/// @returns invalid_argument with the allowed names.
/// @relates host_layout
result<host_layout> parse_host_layout(std::string_view name);

/// `rows` rows of `row_bytes` bytes each, `stride` bytes apart, the first at `offset` (bytes from
/// the start of the memory that the function's comment names). Rows are tokens in order. Contiguous
/// if stride == row_bytes.
struct strided_run {
  uint64_t offset = 0;
  uint64_t row_bytes = 0;
  uint64_t stride = 0;
  uint64_t rows = 0;

  friend bool operator==(const strided_run&, const strided_run&) = default;
};

/// A contiguous piece of memory.
struct byte_run {
  uint64_t offset = 0;
  uint64_t length = 0;

  friend bool operator==(const byte_run&, const byte_run&) = default;
};

/// The one place that knows where layer l of token t lies. A value; any thread.
class pool_geometry {
public:
  /// @pre all fields of `shape` are positive; `pages` counts the padding page.
  pool_geometry(const pool_shape& shape, host_layout layout, uint32_t pages);

  const pool_shape& shape() const noexcept { return shape_; }

  host_layout layout() const noexcept { return layout_; }

  uint32_t pages() const noexcept { return pages_; }

  /// Bytes of one token's row in one half of one layer.
  uint64_t row_bytes(kv_half half) const noexcept;

  /// Bytes of one page, all layers and both halves: the length of its object in L3.
  uint64_t page_bytes() const noexcept;

  /// Bytes of the whole pool, padding page included.
  uint64_t total_bytes() const noexcept { return page_bytes() * pages_; }

  /// Where one half of one layer of one page lies, from the start of the pool.
  /// @pre layer < layers and page < pages()
  strided_run rows(uint32_t layer, kv_half half, page_index page) const noexcept;

  /// The page as contiguous runs in object order, from the start of the pool. Object order is half,
  /// layer, token for layer_first and page_first_direct (so these two exchange pages through L3),
  /// half, token, layer for page_first. One run unless the layout is layer_first.
  std::vector<byte_run> object_runs(page_index page) const;

  /// What must be equal for two pools to exchange page objects: shape, element size and object
  /// order, as text.
  std::string object_fingerprint() const;

private:
  pool_shape shape_;
  host_layout layout_;
  uint32_t pages_;
};

} // namespace hicache
