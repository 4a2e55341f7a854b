#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace hicache {

/// What stands in front of every page in L3, in a segment's slot or in a file, and lets a reader
/// refuse what is not the page it asked for. Encoded as a Cap'n Proto message of fixed size
/// (schema: page_header.capnp).
struct page_header {
  /// How often the slot was given out; bumped by the owner before it reuses the slot. Never 0 in a
  /// slot that holds a page.
  uint32_t generation = 0;
  /// `fingerprint_of` the namespace: model, revision, dtype, geometry.
  uint64_t fingerprint = 0;
  page_key key;
  /// Bytes of the object that follows the header.
  uint64_t length = 0;
  /// XXH3-64 of these bytes.
  uint64_t checksum = 0;
  /// Only in memory that outlives its process (backends/cluster/lasting_memory.hpp), else 0: guards
  /// the header and what stands behind it.
  uint32_t kept_check = 0;
  /// Likewise: copies of the page that there shall be, and not 0 while somebody reads it in place.
  uint8_t copies = 0;
  uint8_t held = 0;

  friend bool operator==(const page_header&, const page_header&) = default;
};

/// Size of an encoded header: two words of Cap'n Proto framing and nine of data.
inline constexpr size_t page_header_bytes = 88;

/// Where `page_header::held` is in an encoded header.
inline constexpr size_t page_header_held_offset = 23;

/// Where the object begins in a segment's slot: behind the header, on a cache line of its own.
inline constexpr size_t slot_object_offset = 128;

/// Bytes of a slot for objects of `object_bytes`: whole cache lines.
constexpr uint64_t slot_bytes_for(uint64_t object_bytes) {
  return (slot_object_offset + object_bytes + 63) / 64 * 64;
}

/// Writes `header` to `target`.
void encode_page_header(const page_header& header, std::span<std::byte, page_header_bytes> target);

/// Whether a header may begin there: cheap, for who looks for headers in much memory.
/// @pre source.size() >= page_header_bytes
bool may_be_page_header(std::span<const std::byte> source) noexcept;

/// Reads a header from bytes that nobody vouches for; `source` may be longer than a header.
/// @returns corrupt_page if magic, version or framing is not as expected.
result<page_header> decode_page_header(std::span<const std::byte> source);

} // namespace hicache
