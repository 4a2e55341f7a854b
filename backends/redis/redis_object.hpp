#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"
#include "messages/page_header.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// How an object lies in Redis. Functions of values, without I/O.
///
/// An object is one value or several: `<prefix>{<64 hex>}` holds a head and the first bytes,
/// `<prefix>{<64 hex>}:1`, `:2`, … hold the rest. The braces are Redis Cluster's hash tag, so all
/// values of an object lie on one node.
namespace hicache {

/// Slots of a Redis cluster, by its specification.
inline constexpr size_t redis_slots = 16384;

/// Bounds of `redis_head::chunk_bytes`. The upper one leaves room for the head below the 512 MiB
/// to which Redis limits a value; the lower one bounds the values of an object.
inline constexpr uint64_t redis_chunk_min = 4096;
inline constexpr uint64_t redis_chunk_max = uint64_t{256} << 20;

/// Precedes the first bytes of an object.
struct redis_head {
  page_header page;
  /// Object bytes in each value; the last one may have fewer.
  uint32_t chunk_bytes = 0;
  /// Values of the object, at least 1.
  uint32_t chunks = 0;

  friend bool operator==(const redis_head&, const redis_head&) = default;
};

/// Size of an encoded head: the page header, then `chunk_bytes` and `chunks`, little-endian.
inline constexpr size_t redis_head_bytes = page_header_bytes + 8;

/// Values that an object of `length` bytes takes.
/// @pre chunk_bytes > 0
constexpr uint64_t redis_chunks(uint64_t length, uint64_t chunk_bytes) {
  return length == 0 ? 1 : (length + chunk_bytes - 1) / chunk_bytes;
}

void encode_redis_head(const redis_head& head, std::span<std::byte, redis_head_bytes> target);

/// Decodes the head at the start of an object's first value, which is untrusted.
/// @returns corrupt_page if it is not the head of this object in this namespace (empty: in any), or
/// contradicts itself
result<redis_head> decode_redis_head(std::span<const std::byte> value, const page_key& key,
                                     std::optional<uint64_t> fingerprint);

/// Bytes of value number `chunk`, without the head.
/// @pre chunk < head.chunks
uint64_t redis_chunk_length(const redis_head& head, uint32_t chunk);

/// The name of value number `chunk` of an object.
std::string redis_name(std::string_view prefix, const page_key& key, uint32_t chunk = 0);

/// The object whose first value has this name; empty for other names.
std::optional<page_key> parse_redis_name(std::string_view prefix, std::string_view name);

/// The slot of a hash tag: CRC-16/XMODEM modulo the slots.
uint16_t redis_slot(std::string_view tag) noexcept;

} // namespace hicache
