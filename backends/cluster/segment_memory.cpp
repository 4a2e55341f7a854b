#include "backends/cluster/segment_memory.hpp"

#include "base/check.hpp"
#include "base/page_checksum.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

namespace hicache {

void write_header(std::span<std::byte> memory, uint64_t offset, const page_header& header) {
  auto bytes = std::array<std::byte, page_header_bytes>{};
  encode_page_header(header, bytes);
  // Bytes first, header last: a readable header implies a complete object.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::memcpy(memory.data() + offset, bytes.data(), bytes.size());
}

std::span<std::byte> object_of(std::span<std::byte> memory, const segment_slot& slot) {
  HICACHE_CHECK(slot.offset + slot_object_offset + slot.length <= memory.size());
  return memory.subspan(slot.offset + slot_object_offset, slot.length);
}

void seal_slot(std::span<std::byte> memory, const segment_slot& slot, uint64_t fingerprint,
               uint64_t checksum) {
  HICACHE_CHECK(slot.offset + slot_object_offset + slot.length <= memory.size());
  write_header(memory, slot.offset,
               {slot.generation, fingerprint, slot.key, slot.length, checksum});
}

void clear_header(std::span<std::byte> memory, uint64_t offset) noexcept {
  std::memset(memory.data() + offset, 0, page_header_bytes);
  // Readers check the header after the bytes, so it must be seen cleared before any new byte.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool is_header_cleared(std::span<const std::byte> memory, uint64_t offset) noexcept {
  return std::ranges::all_of(memory.subspan(offset, page_header_bytes),
                             [](std::byte x) { return x == std::byte{}; });
}

void move_slot(std::span<std::byte> memory, uint64_t from, uint64_t to, uint64_t bytes,
               uint32_t generation) {
  HICACHE_CHECK(from + bytes <= memory.size() && to + bytes <= memory.size());
  auto header = decode_page_header(memory.subspan(from, page_header_bytes));
  clear_header(memory, from);
  std::memmove(memory.data() + to + slot_object_offset, memory.data() + from + slot_object_offset,
               bytes - slot_object_offset);
  if (!header)
    return clear_header(memory, to);
  header->generation = generation;
  write_header(memory, to, *header);
}

bool is_intact(std::span<const std::byte> memory, const segment_slot& page, uint64_t object,
               uint64_t fingerprint) {
  const auto header = decode_page_header(memory.subspan(page.offset));
  if (!header || header->key != page.key || header->generation != page.generation
      || header->fingerprint != fingerprint || header->length != page.length
      || object > memory.size() || page.length > memory.size() - object)
    return false;
  const auto bytes = std::array{memory.subspan(object, page.length)};
  return page_checksum(bytes) == header->checksum;
}

} // namespace hicache
