#include "c_abi/block_table.hpp"

#include "base/about.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

namespace hicache {

namespace {

/// Bounds the block numbers kept per page of a call.
constexpr auto most_blocks_per_page = uint32_t{65536};

/// More than any model has.
constexpr auto most_tensors = size_t{65536};

tl::unexpected<error> wrong(const std::string& what) {
  return fail(ec::invalid_argument, what);
}

result<void> check_tensor(const hc_tensor& made) {
  if (std::ranges::any_of(made.reserved, [](uint64_t x) { return x != 0; }))
    return fail(ec::unsupported, "reserved: expected 0");
  if (made.data == nullptr)
    return wrong("data: NULL; expected where block 0 is");
  if (made.blocks == 0 || made.blocks > HC_NO_BLOCK)
    return wrong("blocks: " + std::to_string(made.blocks) + "; expected 1 to "
                 + std::to_string(HC_NO_BLOCK));
  if (made.block_bytes == 0 || made.block_bytes > limits::page_bytes)
    return wrong("block_bytes: " + std::to_string(made.block_bytes) + "; expected 1 to "
                 + std::to_string(limits::page_bytes));
  if (made.stride < made.block_bytes)
    return wrong("stride: " + std::to_string(made.stride) + "; expected the bytes of a block, "
                 + std::to_string(made.block_bytes) + ", or more");
  const auto room = std::numeric_limits<uintptr_t>::max() - reinterpret_cast<uintptr_t>(made.data);
  if (made.stride > room / made.blocks)
    return wrong("stride: " + std::to_string(made.stride)
                 + "; the last block would be beyond all memory");
  return {};
}

} // namespace

result<block_table> block_table::of(const hc_layout& layout) {
  if (layout.blocks_per_page == 0 || layout.blocks_per_page > most_blocks_per_page)
    return wrong("layout: blocks_per_page: " + std::to_string(layout.blocks_per_page)
                 + "; expected 1 to " + std::to_string(most_blocks_per_page));
  if (layout.tensors == nullptr || layout.tensor_count == 0 || layout.tensor_count > most_tensors)
    return wrong("layout: tensors: expected 1 to " + std::to_string(most_tensors) + " of them");
  auto table = block_table{};
  table.blocks_per_page_ = layout.blocks_per_page;
  table.block_count_ = HC_NO_BLOCK;
  for (const auto& made : std::span{layout.tensors, layout.tensor_count})
    HICACHE_TRY(about("layout: tensor " + std::to_string(table.tensors_.size()), table.add(made)));
  return table;
}

result<void> block_table::add(const hc_tensor& made) {
  HICACHE_TRY(check_tensor(made));
  if (layers_.empty())
    layers_.push_back({});
  const auto next = layers_.size() - 1;
  const auto is_first = made.layer == next;
  if (!is_first && (next == 0 || made.layer != next - 1))
    return wrong("layer: " + std::to_string(made.layer) + "; expected "
                 + (next == 0 ? "" : std::to_string(next - 1) + " or ") + std::to_string(next));
  const auto bytes = made.block_bytes * blocks_per_page_;
  if (page_bytes() + bytes > limits::page_bytes)
    return wrong("a page has more than " + std::to_string(limits::page_bytes) + " bytes with it");
  if (is_first)
    layers_.push_back(layers_.back());
  tensors_.push_back({static_cast<std::byte*>(made.data), made.stride, made.block_bytes});
  layers_.back().tensor = tensors_.size();
  layers_.back().offset += bytes;
  block_count_ = std::min(block_count_, made.blocks);
  return {};
}

result<void> block_table::check(std::span<const uint32_t> blocks, block_gaps gaps) const {
  for (const auto number : blocks) {
    if (number == HC_NO_BLOCK && gaps == block_gaps::refused)
      return wrong("blocks: one is left out, but a page is stored whole");
    if (number != HC_NO_BLOCK && number >= block_count_)
      return wrong("blocks: " + std::to_string(number) + "; there are "
                   + std::to_string(block_count_));
  }
  return {};
}

template <class Visit>
void block_table::for_each_piece(uint32_t first_layer, uint32_t end_layer,
                                 std::span<const uint32_t> blocks, Visit visit) const {
  auto offset = layers_[first_layer].offset;
  for (auto t = layers_[first_layer].tensor; t < layers_[end_layer].tensor; ++t) {
    const auto& of = tensors_[t];
    for (auto i = size_t{0}; i < blocks.size();) {
      auto count = size_t{1};
      while (of.stride == of.block_bytes && i + count < blocks.size() && blocks[i] != HC_NO_BLOCK
             && blocks[i + count] != HC_NO_BLOCK && blocks[i + count] == blocks[i] + count)
        ++count;
      const auto bytes = count * of.block_bytes;
      if (blocks[i] != HC_NO_BLOCK)
        visit(block_piece{of.data + blocks[i] * of.stride, bytes, offset});
      offset += bytes;
      i += count;
    }
  }
}

std::vector<std::span<const std::byte>> block_table::parts(std::span<const uint32_t> blocks) const {
  auto all = std::vector<std::span<const std::byte>>{};
  all.reserve(tensors_.size());
  for_each_piece(0, layers(), blocks,
                 [&](const block_piece& piece) { all.emplace_back(piece.address, piece.bytes); });
  return all;
}

std::vector<block_piece> block_table::pieces(uint32_t layer,
                                             std::span<const uint32_t> blocks) const {
  auto all = std::vector<block_piece>{};
  for_each_piece(layer, layer + 1, blocks, [&](const block_piece& piece) { all.push_back(piece); });
  return all;
}

void block_table::copy_layer(uint32_t layer, std::span<const std::byte> page,
                             std::span<const uint32_t> blocks) const {
  for_each_piece(layer, layer + 1, blocks, [&](const block_piece& piece) {
    std::memcpy(piece.address, page.data() + piece.offset, piece.bytes);
  });
}

} // namespace hicache
