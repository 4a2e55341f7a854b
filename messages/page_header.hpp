#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace hicache {

/// Precedes every page in L3, in a segment's slot or in a file, so that readers can reject other
/// pages. Encoded as a fixed-size Cap'n Proto message (schema: page_header.capnp).
struct page_header {
  /// Allocation count of the slot; incremented by the owner before reusing it. Never 0 in a slot
  /// that holds a page.
  uint32_t generation = 0;
  /// `fingerprint_of` the namespace: model, revision, dtype, geometry.
  uint64_t fingerprint = 0;
  page_key key;
  /// Bytes of the object that follows the header.
  uint64_t length = 0;
  /// XXH3-64 of these bytes.
  uint64_t checksum = 0;
  /// Checksum of the header and what follows it; only in memory that outlives its process
  /// (backends/cluster/lasting_memory.hpp), else 0.
  uint32_t kept_check = 0;
  /// Likewise: wanted copies of the page, and nonzero while it is being read in place.
  uint8_t copies = 0;
  uint8_t held = 0;

  friend bool operator==(const page_header&, const page_header&) = default;
};

/// Size of an encoded header: two words of Cap'n Proto framing and nine of data.
inline constexpr size_t page_header_bytes = 88;

/// Offset of `page_header::held` in an encoded header.
inline constexpr size_t page_header_held_offset = 23;

/// Offset of the object in a segment's slot: behind the header, on its own cache line.
inline constexpr size_t slot_object_offset = 128;

/// Slot size in bytes for objects of `object_bytes`: whole cache lines.
constexpr uint64_t slot_bytes_for(uint64_t object_bytes) {
  return (slot_object_offset + object_bytes + 63) / 64 * 64;
}

void encode_page_header(const page_header& header, std::span<std::byte, page_header_bytes> target);

/// Whether a header may begin there; a cheap filter for scanning large memory.
/// @pre source.size() >= page_header_bytes
bool may_be_page_header(std::span<const std::byte> source) noexcept;

/// Decodes a header from untrusted bytes; `source` may be longer than a header.
/// @returns corrupt_page if magic, version or framing is invalid.
result<page_header> decode_page_header(std::span<const std::byte> source);

} // namespace hicache
