#pragma once

#include "backends/serde/aes_gcm.hpp"
#include "backends/serde/compressor.hpp"
#include "backends/serde/key_ring.hpp"
#include "backends/serde/kv_object.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"
#include "hicache/storage_backend.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hicache::serde {

/// What is done to objects, in this order; undone in the opposite one.
struct codec_chain {
  serde::quantisation quantisation = serde::quantisation::none;
  serde::compression compression = serde::compression::none;
  serde::encryption encryption = serde::encryption::none;

  friend bool operator==(const codec_chain&, const codec_chain&) = default;
};

/// Parses codec names joined by '+' in the order in which they are applied: "none", or at most one
/// of each of "fp8"; "zstd" or "lz4"; "aes-256-gcm".
/// @returns invalid_argument with the allowed names and order
/// @relates codec_chain
result<codec_chain> parse_codec_chain(std::string_view text);

/// @relates codec_chain
std::string to_string(const codec_chain& chain);

/// The longest object that is encoded, in bytes.
inline constexpr uint64_t object_bytes_max = uint64_t{1} << 30;

struct object_codec_options {
  codec_chain chain;
  /// Of zstd: 1 (fast) to 19.
  int zstd_level = 1;
  /// What the objects are. fp8 needs it; compression is better with it. An object of another length
  /// is not converted to fp8.
  std::optional<kv_object_shape> objects;
  /// `fingerprint_of` the namespace. Objects of another one do not decode.
  uint64_t fingerprint = 0;
};

/// Working memory of one thread.
class codec_scratch {
public:
  explicit codec_scratch(const object_codec_options& options);

private:
  friend class object_codec;

  compressor& compressor_for(compression kind) { return kind == compression::lz4 ? *lz4_ : *zstd_; }

  std::unique_ptr<compressor> zstd_;
  std::unique_ptr<compressor> lz4_;
  std::unique_ptr<dequantiser> values_;
  /// Stages of an object; they grow to the longest one.
  std::vector<std::byte> whole_;
  std::vector<std::byte> stage_;
  std::vector<std::byte> plane_;
};

/// Encodes and decodes single objects: a header (object_header.hpp), then the payload. Values in,
/// values out; no I/O. Decodes whatever a header says, so that the compression may change; but
/// fp8 and encryption must be as configured, since their objects have other names (`object_name`).
/// Any thread, each with its own scratch.
class object_codec {
public:
  /// @returns invalid_argument if fp8 lacks a shape or the shape does not allow it, the level is
  /// out of range, or encryption lacks keys
  static result<std::unique_ptr<object_codec>> make(const object_codec_options& options,
                                                    key_ring keys);

  const object_codec_options& options() const noexcept { return options_; }

  /// The name under which an object is stored. Lossy and lossless, encrypted and open objects have
  /// different names, so one is never taken for the other. Zero stays zero (no parent). The name
  /// of a name is the key.
  page_key object_name(const page_key& key) const noexcept;

  /// Upper bound of the encoded length of an object.
  uint64_t encoded_bytes_max(uint64_t original_bytes) const noexcept {
    return object_header_bytes + original_bytes;
  }

  /// The encoded length of an object, which without compression depends on nothing else.
  /// @pre options().chain.compression is none
  uint64_t encoded_bytes(uint64_t original_bytes) const noexcept;

  /// Encodes an object.
  /// @param key The name before `object_name`.
  /// @param target At least encoded_bytes_max.
  /// @returns the encoded length; invalid_argument if the tenant has no key; io_failure if OpenSSL
  /// fails
  result<uint64_t> encode(const page_key& key, uint64_t tenant,
                          std::span<const std::span<const std::byte>> parts,
                          std::span<std::byte> target, codec_scratch& scratch) const;

  /// Decodes untrusted bytes, which are overwritten.
  /// @returns corrupt_page if they are not the object, or its key is not known; invalid_argument if
  /// the object has another length than the parts
  result<void> decode(const page_key& key, std::span<std::byte> object,
                      std::span<const std::span<std::byte>> parts, codec_scratch& scratch) const;

  /// Decodes untrusted bytes of an object whose length is not known.
  /// @param bytes_max The longest length that it may have.
  /// @returns corrupt_page, also if the object is longer
  result<std::vector<std::byte>> decode_whole(const page_key& key,
                                              std::span<const std::byte> object, uint64_t bytes_max,
                                              codec_scratch& scratch) const;

private:
  object_codec(const object_codec_options& options, std::optional<fp8_object> fp8, key_ring keys);

  /// Whether an object of this length is converted to fp8.
  bool is_quantised(uint64_t original_bytes) const noexcept {
    return fp8_ && fp8_->original_bytes() == original_bytes;
  }

  result<void> seal(object_header& header, const page_key& key, uint64_t tenant,
                    std::span<std::byte> encoded) const;

  result<void> open(const object_header& header, const page_key& key,
                    std::span<std::byte> object) const;

  result<void> check(const object_header& header, uint64_t wanted_bytes) const;

  object_codec_options options_;
  std::optional<fp8_object> fp8_;
  key_ring keys_;
  aes_gcm cipher_;
  mutable nonce_source nonces_;
  page_key name_mask_;
};

} // namespace hicache::serde
