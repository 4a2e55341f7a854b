#pragma once

#include "hicache/error.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace hicache::serde {

/// How the numbers of an object are stored. The values are part of the format: never renumber.
enum class quantisation : uint8_t { none = 0, fp8_e4m3 = 1 };

/// How an object's bytes are compressed. Part of the format.
enum class compression : uint8_t { none = 0, zstd = 1, lz4 = 2 };

/// How an object is sealed. Part of the format. `aes_256_gcm` is AES-256-GCM with a key derived for
/// each object (aes_gcm.hpp).
enum class encryption : uint8_t { none = 0, aes_256_gcm = 1 };

/// Longest name of a key, in bytes.
inline constexpr size_t key_id_bytes = 16;

inline constexpr size_t nonce_bytes = 24;

/// A tag of AES-GCM. Without encryption: XXH3-64 and eight zero bytes.
inline constexpr size_t seal_bytes = 16;

using object_nonce = std::array<std::byte, nonce_bytes>;
using object_seal = std::array<std::byte, seal_bytes>;

/// Precedes the payload of every encoded object, so that each says how to decode it. Numbers are
/// little endian.
struct object_header {
  serde::quantisation quantisation = serde::quantisation::none;
  serde::compression compression = serde::compression::none;
  serde::encryption encryption = serde::encryption::none;
  /// Bytes of an element whose first, second, ... bytes were compressed apart; 1: all together.
  uint8_t planes = 1;
  /// Bytes of the object before encoding.
  uint64_t original_bytes = 0;
  /// Bytes behind the header.
  uint64_t payload_bytes = 0;
  /// The key of an encrypted object, else empty. 1 to key_id_bytes letters, digits, '.', '_', '-'.
  std::string key_id;
  /// Of an encrypted object, else zero.
  object_nonce nonce{};
  /// Authenticates what precedes it, the payload, the page key and the namespace.
  object_seal seal{};

  friend bool operator==(const object_header&, const object_header&) = default;
};

/// Bytes of an encoded header, and of its part that precedes the seal.
inline constexpr size_t object_header_bytes = 88;
inline constexpr size_t sealed_header_bytes = object_header_bytes - seal_bytes;

/// Whether a text may name a key.
bool is_key_id(std::string_view text) noexcept;

/// @pre the fields have the values that their comments allow
void encode_object_header(const object_header& header,
                          std::span<std::byte, object_header_bytes> target);

/// Decodes the header of untrusted bytes; `object` is the whole object. Does not look at the seal.
/// @returns corrupt_page if a field is invalid or the object has another length than its header
/// says.
result<object_header> decode_object_header(std::span<const std::byte> object);

} // namespace hicache::serde
