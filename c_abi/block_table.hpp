#pragma once

#include "hicache.h"
#include "hicache/error.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hicache {

/// Bytes of a page that are contiguous in the blocks.
struct block_piece {
  std::byte* address = nullptr;
  uint64_t bytes = 0;
  /// Offset in the page.
  uint64_t offset = 0;
};

/// Whether a page may lack blocks.
enum class block_gaps : uint8_t { allowed, refused };

/// Blocks in an engine's memory, and their mapping to pages. A value; owns no memory.
class block_table {
public:
  /// @returns invalid_argument or unsupported, with a sentence
  static result<block_table> of(const hc_layout& layout);

  uint64_t page_bytes() const noexcept { return layers_.back().offset; }

  uint32_t blocks_per_page() const noexcept { return blocks_per_page_; }

  uint32_t layers() const noexcept { return static_cast<uint32_t>(layers_.size() - 1); }

  /// Bytes of the layer in one page.
  uint64_t layer_bytes(uint32_t layer) const noexcept {
    return layers_[layer + 1].offset - layers_[layer].offset;
  }

  /// Checks that the blocks exist.
  /// @returns invalid_argument with a sentence
  result<void> check(std::span<const uint32_t> blocks, block_gaps gaps) const;

  /// The memory parts of a page, in page order.
  /// @pre check(blocks, block_gaps::refused)
  std::vector<std::span<const std::byte>> parts(std::span<const uint32_t> blocks) const;

  /// The pieces of one layer of a page.
  /// @pre check(blocks, block_gaps::allowed)
  std::vector<block_piece> pieces(uint32_t layer, std::span<const uint32_t> blocks) const;

  /// Copies a layer of a page to its blocks in host memory.
  /// @pre check(blocks, block_gaps::allowed); page has page_bytes()
  void copy_layer(uint32_t layer, std::span<const std::byte> page,
                  std::span<const uint32_t> blocks) const;

private:
  struct tensor {
    std::byte* data = nullptr;
    uint64_t stride = 0;
    uint64_t block_bytes = 0;
  };

  /// Start of a layer: index of its first tensor, and offset in a page.
  struct layer_start {
    size_t tensor = 0;
    uint64_t offset = 0;
  };

  block_table() = default;

  /// Calls visit(piece) for each piece of the layers, with adjacent pieces merged.
  template <class Visit>
  void for_each_piece(uint32_t first_layer, uint32_t end_layer, std::span<const uint32_t> blocks,
                      Visit visit) const;

  result<void> add(const hc_tensor& made);

  std::vector<tensor> tensors_;
  /// One per layer, then the end.
  std::vector<layer_start> layers_;
  uint32_t blocks_per_page_ = 0;
  /// Number of blocks present in all tensors.
  uint64_t block_count_ = 0;
};

} // namespace hicache
