// Encoded objects in a store that others may write to, with a valid seal and without, and keys.

#include "backends/serde/object_codec.hpp"
#include "base/check.hpp"
#include "base/page_checksum.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace hicache;

constexpr auto fingerprint = uint64_t{7};
constexpr auto name = page_key{};

const auto shape = serde::kv_object_shape{
  {attention_kind::mha, 2, 1, 4, 4, 2, 4, 0}, host_layout::page_head, 1, serde::element_type::bf16};

/// Of two layers, K and V of four elements, four tokens, two bytes each.
constexpr size_t shape_bytes = 2 * 2 * 4 * 4 * 2;

struct opened_codec {
  explicit opened_codec(std::string_view chain)
    : options{serde::parse_codec_chain(chain).value(), 1, shape, fingerprint},
      codec(std::move(serde::object_codec::make(
                        options, serde::key_ring::parse("* k " + std::string(64, '1')).value())
                        .value())),
      scratch(options) {}

  serde::object_codec_options options;
  std::unique_ptr<serde::object_codec> codec;
  serde::codec_scratch scratch;
};

/// Makes the object's checksum right, as somebody with write access could.
void seal(std::span<std::byte> object) {
  auto name_space = std::array<std::byte, 8>{std::byte{fingerprint}};
  const auto parts = std::array<std::span<const std::byte>, 4>{
    object.first(serde::sealed_header_bytes), std::as_bytes(std::span{name.bytes}), name_space,
    object.subspan(serde::object_header_bytes)};
  const auto checksum = page_checksum(parts);
  for (auto i = size_t{0}; i < serde::seal_bytes; ++i)
    object[serde::sealed_header_bytes + i]
      = i < 8 ? static_cast<std::byte>(checksum >> (8 * i)) : std::byte{0};
}

/// @param length Of the parts; the object may be of another one.
void decode(opened_codec& with, std::vector<std::byte> object, size_t length) {
  auto back = std::vector<std::byte>(length);
  const auto half = std::span{back}.first(length / 2);
  const auto parts = std::array{half, std::span{back}.subspan(half.size())};
  const auto decoded = with.codec->decode(name, object, parts, with.scratch);
  if (decoded)
    return;
  HICACHE_CHECK(decoded.error().code == ec::corrupt_page
                || decoded.error().code == ec::invalid_argument);
  HICACHE_CHECK(!decoded.error().detail.empty());
}

/// What is encoded comes back.
void round_trip(opened_codec& with, std::span<const std::byte> object) {
  auto encoded = std::vector<std::byte>(with.codec->encoded_bytes_max(object.size()));
  const auto length = with.codec->encode(name, 0, {&object, 1}, encoded, with.scratch);
  HICACHE_CHECK(length.has_value());
  encoded.resize(*length);
  auto back = std::vector<std::byte>(object.size());
  const auto whole = std::span{back};
  HICACHE_CHECK(with.codec->decode(name, encoded, {&whole, 1}, with.scratch).has_value());
  const auto is_lossy
    = with.options.chain.quantisation != serde::quantisation::none && object.size() == shape_bytes;
  HICACHE_CHECK(is_lossy || std::ranges::equal(back, object));
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static auto codecs = std::array{opened_codec{"zstd"}, opened_codec{"lz4"},
                                  opened_codec{"fp8+zstd"}, opened_codec{"aes-256-gcm"}};
  if (size < 3)
    return 0;
  auto& with = codecs[data[0] % codecs.size()];
  const auto length = size_t{data[1]} + (data[2] % 4) * 256u;
  const auto input = std::as_bytes(std::span{data, size}).subspan(3);
  auto object = std::vector<std::byte>(input.begin(), input.end());
  decode(with, object, length);
  if (object.size() >= serde::object_header_bytes) {
    seal(object);
    decode(with, std::move(object), length);
  }
  round_trip(with, input);
  static_cast<void>(serde::key_ring::parse({reinterpret_cast<const char*>(data), size}));
  return 0;
}
