#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hicache {

/// What a model stores per token in each layer.
/// - mha: a K row and a V row per head (MQA and GQA have fewer heads).
/// - mla: one latent row, the same on every rank.
/// - nsa: the latent row, and an index key by which the sparse attention (NSA, DSA) selects tokens.
enum class attention_kind : uint8_t { mha, mla, nsa };

/// @relates attention_kind
const char* to_string(attention_kind kind) noexcept;

/// @returns invalid_argument with the allowed names.
/// @relates attention_kind
result<attention_kind> parse_attention_kind(std::string_view name);

/// A kind of row in a layer.
enum class kv_part : uint8_t { key, value, latent, index_key };

/// The parts of a layer, in memory order.
/// @relates attention_kind
std::span<const kv_part> parts_of(attention_kind kind) noexcept;

/// Shape of a rank's KV.
struct pool_shape {
  attention_kind attention = attention_kind::mha;
  uint32_t layers = 0;
  /// mha: KV heads of this rank (head_split). Else 1.
  uint32_t kv_heads = 0;
  /// mha: elements of a K head. Else: elements of the latent (DeepSeek-V3: 512 + 64).
  uint32_t head_dim = 0;
  /// mha: elements of a V head. Else 0.
  uint32_t v_head_dim = 0;
  /// Bytes of one element: 1 (fp8), 2 (fp16, bf16) or 4 (fp32).
  uint32_t element_bytes = 0;
  /// Tokens per page.
  uint32_t page_size = 0;
  /// nsa: bytes of a token's index key with its scale (DeepSeek-V3.2: 128 + 4). Else 0.
  uint32_t index_key_bytes = 0;

  friend bool operator==(const pool_shape&, const pool_shape&) = default;
};

/// All fields that apply to the kind of attention, for messages and fingerprints.
/// @relates pool_shape
std::string to_string(const pool_shape& shape);

/// How a model's KV heads are split over the ranks of an instance: into equal parts in order, each
/// held by `replicas` consecutive ranks. A latent is a single head that all ranks hold.
struct head_split {
  /// Heads per rank.
  uint32_t heads = 1;
  /// Ranks that hold the same heads.
  uint32_t replicas = 1;

  /// The part of the heads that a rank holds.
  uint32_t part_of(uint32_t rank) const noexcept { return rank / replicas; }

  friend bool operator==(const head_split&, const head_split&) = default;
};

/// Splits heads as inference engines do: if ranks outnumber heads, heads are replicated.
/// @pre heads > 0 and ranks > 0
/// @returns nothing unless one number divides the other
/// @relates head_split
std::optional<head_split> split_heads(uint32_t heads, uint32_t ranks) noexcept;

/// Memory layouts of L2 (docs/memory.md has pictures). Outermost dimension first:
/// - layer_first: part, layer, page, token: the layout the GPU computes on. A page is scattered
/// over parts * layers runs.
/// - page_first: page, part, token, layer: a page is one object; one layer of one token is one run.
/// - page_first_direct: page, part, layer, token: a page is one object; one layer of a page is one
/// run.
/// - page_head: page, head, part, layer, token: a page is one object, and so is each head in it;
/// one layer of one head of a page is one run. For instances that share pages but have different
/// numbers of ranks.
enum class host_layout : uint8_t { layer_first, page_first, page_first_direct, page_head };

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

/// Heads [first, first + count). Where attention has no heads, {0, 1} is all there is.
struct head_range {
  uint32_t first = 0;
  uint32_t count = 0;

  friend bool operator==(const head_range&, const head_range&) = default;
};

/// The heads of a page that form one object in L3.
struct head_group {
  /// Numbered among the rank's own heads.
  head_range heads;
  /// Rank-independent name: the heads among all heads of the model ("heads 4+2"), or "latent".
  std::string name;

  friend bool operator==(const head_group&, const head_group&) = default;
};

/// Computes where layer l of token t lies. A value; any thread.
class pool_geometry {
public:
  /// @pre the fields of `shape` fit its kind of attention; `pages` counts the padding page.
  pool_geometry(const pool_shape& shape, host_layout layout, uint32_t pages);

  const pool_shape& shape() const noexcept { return shape_; }

  host_layout layout() const noexcept { return layout_; }

  uint32_t pages() const noexcept { return pages_; }

  std::span<const kv_part> parts() const noexcept { return parts_of(shape_.attention); }

  /// Bytes of one token's row in one part of one layer, all heads.
  uint64_t row_bytes(kv_part part) const noexcept;

  /// Bytes of one page, all layers and parts.
  uint64_t page_bytes() const noexcept;

  /// Bytes of the whole pool, padding page included.
  uint64_t total_bytes() const noexcept { return page_bytes() * pages_; }

  /// Number of separately stored columns in a row of this part: the heads for page_head, else 1.
  uint32_t columns(kv_part part) const noexcept;

  /// Location of one column of one part of one layer of one page, from the start of the pool.
  /// @pre part is one of parts(), layer < layers, page < pages() and column < columns(part)
  strided_run rows(uint32_t layer, kv_part part, page_index page,
                   uint32_t column = 0) const noexcept;

  /// Bytes between consecutive pages within one part of one layer.
  uint64_t page_stride(kv_part part) const noexcept;

  head_range all_heads() const noexcept { return {0, shape_.kv_heads}; }

  /// Heads of a page as contiguous runs in object order, from the start of the pool. Object order
  /// is the layout's order, except part, layer, token, head for layer_first. Yields one run for
  /// page_head, and for all heads unless the layout is layer_first.
  /// @pre heads.count > 0 and heads.first + heads.count <= kv_heads
  std::vector<byte_run> object_runs(page_index page, head_range heads) const;

  /// Bytes of an object with `heads` heads.
  uint64_t object_bytes(uint32_t heads) const noexcept;

  /// Shape and object order as text, which must be equal for two instances to exchange objects of
  /// `heads` heads. Call it on the whole model's geometry, so that it does not depend on ranks.
  std::string object_fingerprint(uint32_t heads) const;

  /// A rank's heads, in groups of `heads`, in order.
  /// @param part The rank's part of the model's heads, of kv_heads each (head_split::part_of).
  /// @pre heads > 0 divides kv_heads
  std::vector<head_group> head_groups(uint32_t part, uint32_t heads) const;

private:
  pool_shape shape_;
  host_layout layout_;
  uint32_t pages_;
};

/// Location of one part of one layer in L1: the row of token t of page p is at address + p *
/// page_stride + t * token_stride.
struct layer_buffer {
  /// Address of page 0, the padding page. A device address on a GPU.
  uint64_t address = 0;
  /// Bytes.
  uint64_t page_stride = 0;
  uint64_t token_stride = 0;

  friend bool operator==(const layer_buffer&, const layer_buffer&) = default;
};

/// An L1 pool described by the addresses of its layers, allocated by hicache or registered by an
/// engine. A value; owns no memory.
struct device_layers {
  pool_shape shape;
  /// Includes the padding page.
  uint32_t pages = 0;
  /// buffers[part * layers + layer], parts ordered as in parts_of().
  std::vector<layer_buffer> buffers;

  /// A pool whose memory starts at `address`.
  /// @pre pool.layout() is layer_first
  static device_layers of(const pool_geometry& pool, uint64_t address);

  /// Checks that the buffers fit the shape and that no two rows of a buffer overlap.
  /// @returns invalid_argument with a sentence.
  result<void> check() const;
};

} // namespace hicache
