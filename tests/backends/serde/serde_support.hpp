#pragma once

#include "backends/serde/object_codec.hpp"
#include "tests/backends/backend_support.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Objects and codecs for the tests of serde.
namespace hicache::test {

inline page_bytes from_hex(std::string_view digits) {
  auto bytes = page_bytes{};
  for (auto i = size_t{0}; i + 1 < digits.size(); i += 2)
    bytes.push_back(
      static_cast<std::byte>(std::stoi(std::string{digits.substr(i, 2)}, nullptr, 16)));
  return bytes;
}

inline page_bytes bytes_of_text(std::string_view text) {
  const auto bytes = std::as_bytes(std::span{text});
  return {bytes.begin(), bytes.end()};
}

/// Two keys for everybody, the second one for new objects, and one for the tenant of the salt "a
/// tenant".
inline const auto three_keys = "* old " + std::string(64, '1') + "\n* new " + std::string(64, '2')
                               + "\na tenant its " + std::string(64, '3') + "\n";

inline serde::key_ring keys_of(std::string_view text = three_keys) {
  auto keys = serde::key_ring::parse(text);
  EXPECT_TRUE(keys) << to_string(keys.error());
  return std::move(keys.value());
}

/// Two layers of two heads; small enough to damage each byte of an object.
inline serde::kv_object_shape small_objects(host_layout layout = host_layout::page_head,
                                            serde::element_type element = serde::element_type::bf16,
                                            uint32_t heads = 2) {
  return {
    {attention_kind::mha, 2, 2, 4, 6, serde::width_of(element), 3, 0}, layout, heads, element};
}

inline uint64_t object_bytes(const serde::kv_object_shape& objects) {
  return pool_geometry{objects.shape, objects.layout, 1}.object_bytes(objects.heads);
}

/// Elements near each other, as those of KV are: normal numbers around 1.
inline page_bytes elements_of(uint64_t seed, serde::element_type element, uint64_t bytes) {
  auto random = std::mt19937_64{seed};
  auto normal = std::normal_distribution<float>{};
  auto object = page_bytes(bytes);
  const auto width = serde::width_of(element);
  for (auto i = size_t{0}; i + width <= bytes; i += width) {
    const auto bits = serde::narrow(element, normal(random));
    std::memcpy(object.data() + i, &bits, width);
  }
  return object;
}

/// A codec with its scratch, for one object after the other.
class one_codec {
public:
  one_codec(std::string_view chain, std::optional<serde::kv_object_shape> objects = {},
            uint64_t fingerprint = 7, std::string_view keys = three_keys)
    : options_{serde::parse_codec_chain(chain).value(), 1, objects, fingerprint},
      codec_(std::move(serde::object_codec::make(options_, keys_of(keys)).value())),
      scratch_(options_) {}

  const serde::object_codec& operator*() const { return *codec_; }
  const serde::object_codec* operator->() const { return codec_.get(); }

  result<page_bytes> encode(const page_key& key, const page_bytes& object,
                            const std::vector<size_t>& cuts = {}, uint64_t tenant = 0) {
    auto encoded = page_bytes(codec_->encoded_bytes_max(object.size()));
    const auto length = codec_->encode(key, tenant, cut(object, cuts), encoded, scratch_);
    if (!length)
      return tl::unexpected{length.error()};
    encoded.resize(*length);
    return encoded;
  }

  result<page_bytes> decode(const page_key& key, page_bytes encoded, size_t length,
                            const std::vector<size_t>& cuts = {}) {
    auto object = page_bytes(length);
    const auto parts = cut(object, cuts);
    if (const auto decoded = codec_->decode(key, encoded, parts, scratch_); !decoded)
      return tl::unexpected{decoded.error()};
    return object;
  }

private:
  serde::object_codec_options options_;
  std::unique_ptr<serde::object_codec> codec_;
  serde::codec_scratch scratch_;
};

} // namespace hicache::test
