#include "cache/handoff/handoff_cut.hpp"

#include <numeric>

namespace hicache {

namespace {

/// Bytes of one head of one token in a part; of the whole row where there are no heads.
uint64_t head_bytes(const pool_shape& shape, kv_part part) noexcept {
  switch (part) {
    case kv_part::value:
      return uint64_t{shape.v_head_dim} * shape.element_bytes;
    case kv_part::index_key:
      return shape.index_key_bytes;
    default:
      return uint64_t{shape.head_dim} * shape.element_bytes;
  }
}

} // namespace

handoff_cut::handoff_cut(head_split sender, head_split receiver) noexcept
  : sender_(sender), receiver_(receiver), heads_(std::gcd(sender.heads, receiver.heads)) {}

std::optional<handoff_cut> handoff_cut::between(uint32_t heads, uint32_t sender_ranks,
                                                uint32_t receiver_ranks) {
  if (heads == 0 || sender_ranks == 0 || receiver_ranks == 0)
    return std::nullopt;
  const auto sender = split_heads(heads, sender_ranks);
  const auto receiver = split_heads(heads, receiver_ranks);
  return sender && receiver ? std::optional{handoff_cut{*sender, *receiver}} : std::nullopt;
}

std::vector<handoff_source> handoff_cut::sources(uint32_t receiver_rank) const {
  auto list = std::vector<handoff_source>{};
  const auto first = receiver_.part_of(receiver_rank) * receiver_.heads;
  for (auto head = first; head < first + receiver_.heads; head += heads_) {
    const auto rank = head / sender_.heads * sender_.replicas + receiver_rank % sender_.replicas;
    list.push_back({rank, head % sender_.heads / heads_, {head - first, heads_}});
  }
  return list;
}

uint64_t handoff_object_bytes(const pool_shape& shape, uint32_t heads, uint64_t rows) noexcept {
  auto bytes = uint64_t{0};
  for (const auto part : parts_of(shape.attention))
    bytes += head_bytes(shape, part) * heads * rows;
  return bytes;
}

std::vector<std::span<std::byte>> handoff_rows(const device_layers& pool, uint32_t layer,
                                               page_index page, head_range heads, uint64_t rows) {
  auto spans = std::vector<std::span<std::byte>>{};
  const auto parts = parts_of(pool.shape.attention);
  for (auto part = size_t{0}; part < parts.size(); ++part) {
    const auto& buffer = pool.buffers[part * pool.shape.layers + layer];
    const auto head = head_bytes(pool.shape, parts[part]);
    const auto begin = buffer.address + page * buffer.page_stride + heads.first * head;
    const auto bytes = heads.count * head;
    const auto is_dense = bytes == buffer.token_stride;
    for (auto row = uint64_t{0}; row < (is_dense ? 1 : rows); ++row)
      spans.emplace_back(reinterpret_cast<std::byte*>(begin + row * buffer.token_stride),
                         is_dense ? bytes * rows : bytes);
  }
  return spans;
}

} // namespace hicache
