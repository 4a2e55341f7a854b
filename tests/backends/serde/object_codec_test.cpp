#include "backends/serde/byte_planes.hpp"
#include "backends/serde/object_codec.hpp"
#include "cache/hash/page_hash.hpp"
#include "tests/backends/serde/serde_support.hpp"

#include <cmath>

namespace hicache::test {
namespace {

using serde::compression;
using serde::element_type;
using serde::encryption;
using serde::quantisation;

const auto all_chains = std::vector<std::string>{
  "zstd",     "lz4",     "aes-256-gcm",     "zstd+aes-256-gcm", "fp8",
  "fp8+zstd", "fp8+lz4", "lz4+aes-256-gcm", "fp8+aes-256-gcm",  "fp8+zstd+aes-256-gcm"};

serde::object_header header_of(const page_bytes& encoded) {
  const auto header = serde::decode_object_header(encoded);
  EXPECT_TRUE(header) << to_string(header.error());
  return header.value_or(serde::object_header{});
}

// -- chains -----------------------------------------------------------------------

TEST(CodecChainTest, ParsesWhatItPrints) {
  EXPECT_EQ(serde::parse_codec_chain("none"), serde::codec_chain{});
  EXPECT_EQ(
    serde::parse_codec_chain("fp8+lz4+aes-256-gcm"),
    (serde::codec_chain{quantisation::fp8_e4m3, compression::lz4, encryption::aes_256_gcm}));
  for (const auto& text : all_chains)
    EXPECT_EQ(to_string(serde::parse_codec_chain(text).value()), text);
  EXPECT_EQ(to_string(serde::codec_chain{}), "none");
}

TEST(CodecChainTest, RefusesUnknownNamesOtherOrdersAndRepetitions) {
  for (const auto* text : {"", "+", "gzip", "zstd+", "+zstd", "zstd+fp8", "aes-256-gcm+zstd",
                           "zstd+lz4", "zstd+zstd", "fp8+none", "ZSTD", "zstd aes-256-gcm"}) {
    const auto chain = serde::parse_codec_chain(text);
    ASSERT_FALSE(chain) << text;
    EXPECT_EQ(chain.error().code, ec::invalid_argument);
    EXPECT_EQ(chain.error().detail,
              "'" + std::string{text}
                + "' is not a list of codecs; expected \"none\", or \"fp8\", \"zstd\" or \"lz4\", "
                  "and \"aes-256-gcm\", in this order and joined by '+'");
  }
}

// -- headers ----------------------------------------------------------------------

TEST(ObjectHeaderTest, DecodesWhatItEncodes) {
  auto header = serde::object_header{quantisation::fp8_e4m3,
                                     compression::lz4,
                                     encryption::aes_256_gcm,
                                     4,
                                     uint64_t{1} << 40,
                                     3,
                                     "sixteen.letters_",
                                     {},
                                     {}};
  std::ranges::copy(bytes_of(1, header.nonce.size()), header.nonce.begin());
  std::ranges::copy(bytes_of(2, header.seal.size()), header.seal.begin());
  auto object = page_bytes(serde::object_header_bytes + 3);
  serde::encode_object_header(header, std::span{object}.first<serde::object_header_bytes>());
  EXPECT_EQ(serde::decode_object_header(object), header);
  object.push_back({});
  EXPECT_EQ(code_of(serde::decode_object_header(object)), ec::corrupt_page);
  for (auto length = size_t{0}; length < serde::object_header_bytes + 3; ++length)
    EXPECT_EQ(code_of(serde::decode_object_header(std::span{object}.first(length))),
              ec::corrupt_page);
}

TEST(ObjectHeaderTest, SaysWhichFieldIsWrong) {
  auto object = page_bytes(serde::object_header_bytes);
  serde::encode_object_header({}, std::span{object}.first<serde::object_header_bytes>());
  ASSERT_TRUE(serde::decode_object_header(object));
  const auto detail_with = [&](size_t at, uint8_t value) {
    auto changed = object;
    changed[at] = std::byte{value};
    const auto header = serde::decode_object_header(changed);
    return header ? std::string{"nothing"} : header.error().detail;
  };
  EXPECT_EQ(detail_with(0, 'x'), "an encoded object does not begin with the header's magic");
  EXPECT_EQ(detail_with(4, 2), "an encoded object has the unknown format version 2");
  EXPECT_EQ(detail_with(5, 2), "an encoded object has the unknown quantisation 2");
  EXPECT_EQ(detail_with(6, 3), "an encoded object has the unknown compression 3");
  EXPECT_EQ(detail_with(7, 2), "an encoded object has the unknown encryption 2");
  EXPECT_EQ(detail_with(7, 1), "an encoded object is encrypted but does not name a key");
  EXPECT_EQ(detail_with(8, 3), "an encoded object is split into 3 planes; expected 1, 2 or 4");
  EXPECT_EQ(detail_with(15, 1), "an encoded object has reserved bytes that are not zero");
  EXPECT_EQ(detail_with(24, 1), "an encoded object has 0 bytes behind its header, which says 1");
  EXPECT_EQ(detail_with(32, 'k'), "an encoded object names a key although it is not encrypted");
  EXPECT_EQ(detail_with(60, 1), "an encoded object names a key although it is not encrypted");
}

// -- planes -----------------------------------------------------------------------

TEST(BytePlanesTest, PutsBackWhatItTakes) {
  const auto object = bytes_of(1, 4 * 37);
  for (const auto planes : {2u, 4u}) {
    auto back = page_bytes(object.size());
    for (auto plane = size_t{0}; plane < planes; ++plane) {
      auto taken = page_bytes(object.size() / planes);
      serde::take_plane(object, planes, plane, taken);
      for (auto i = size_t{0}; i < taken.size(); ++i)
        EXPECT_EQ(taken[i], object[i * planes + plane]);
      serde::put_plane(taken, planes, plane, back);
    }
    EXPECT_EQ(back, object);
  }
}

// -- round trips ------------------------------------------------------------------

/// Random bytes, zeros, elements, a ramp: by number.
page_bytes object_of_kind(int kind, uint64_t seed, size_t length) {
  if (kind == 0)
    return bytes_of(seed, length);
  if (kind == 1)
    return page_bytes(length);
  if (kind == 2)
    return elements_of(seed, element_type::bf16, length);
  auto ramp = page_bytes(length);
  for (auto i = size_t{0}; i < length; ++i)
    ramp[i] = static_cast<std::byte>(i / 7 + seed);
  return ramp;
}

TEST(ObjectCodecTest, GivesBackEveryObjectExactlyUnlessItIsQuantised) {
  for (const auto& chain : all_chains) {
    auto codec = one_codec{chain, small_objects()};
    auto random = std::mt19937_64{11};
    for (auto round = uint64_t{0}; round < 400; ++round) {
      SCOPED_TRACE(chain + ", round " + std::to_string(round));
      auto length = round < 12 ? size_t{round} : size_t{random() % 5000};
      length += length == object_bytes(small_objects()) ? 1 : 0;
      const auto object = object_of_kind(static_cast<int>(round % 4), round, length);
      const auto middle = length == 0 ? 0 : random() % length;
      const auto encoded = codec.encode(key_of(round), object, {middle});
      ASSERT_TRUE(encoded) << to_string(encoded.error());
      ASSERT_LE(encoded->size(), codec->encoded_bytes_max(length));
      EXPECT_EQ(header_of(*encoded).original_bytes, length);
      for (const auto& cuts : {std::vector<size_t>{}, std::vector<size_t>{middle, 0}}) {
        const auto back = codec.decode(key_of(round), *encoded, length, cuts);
        ASSERT_TRUE(back) << to_string(back.error());
        ASSERT_EQ(*back, object);
      }
    }
  }
}

TEST(ObjectCodecTest, QuantisedObjectsAreOffByTheErrorBoundOnly) {
  for (const auto element : {element_type::bf16, element_type::fp16, element_type::fp32})
    for (const auto* chain : {"fp8", "fp8+zstd", "fp8+lz4+aes-256-gcm"}) {
      const auto objects = small_objects(host_layout::page_first, element);
      auto codec = one_codec{chain, objects};
      const auto object = elements_of(4, element, object_bytes(objects));
      const auto encoded = codec.encode(key_of(1), object, {5, 100});
      ASSERT_TRUE(encoded);
      EXPECT_EQ(header_of(*encoded).quantisation, quantisation::fp8_e4m3);
      const auto back = codec.decode(key_of(1), *encoded, object.size(), {9});
      ASSERT_TRUE(back) << to_string(back.error());
      const auto width = serde::width_of(element);
      for (auto i = size_t{0}; i < object.size(); i += width) {
        auto was = uint32_t{0};
        auto is = uint32_t{0};
        std::memcpy(&was, object.data() + i, width);
        std::memcpy(&is, back->data() + i, width);
        const auto x = serde::widen(element, was);
        EXPECT_NEAR(serde::widen(element, is), x, std::max(std::abs(x) / 16, 0x1p-16F));
      }
      // What was quantised once stays as it is.
      const auto again = codec.decode(key_of(1), *codec.encode(key_of(1), *back), object.size());
      ASSERT_TRUE(again);
      EXPECT_EQ(*again, *back);
    }
}

TEST(ObjectCodecTest, AnObjectThatDoesNotShrinkIsStoredAsItIs) {
  for (const auto* chain : {"zstd", "lz4", "zstd+aes-256-gcm"}) {
    auto codec = one_codec{chain};
    const auto object = bytes_of(1, 5000);
    const auto encoded = codec.encode(key_of(1), object);
    ASSERT_TRUE(encoded);
    EXPECT_EQ(header_of(*encoded).compression, compression::none) << chain;
    EXPECT_EQ(encoded->size(), serde::object_header_bytes + object.size());
    const auto smaller = codec.encode(key_of(1), page_bytes(5000));
    EXPECT_NE(header_of(*smaller).compression, compression::none) << chain;
    EXPECT_LT(smaller->size(), 300u) << chain;
  }
}

TEST(ObjectCodecTest, ElementsCompressBetterWithTheirBytesApart) {
  const auto object = elements_of(1, element_type::bf16, 65536);
  auto blind = one_codec{"zstd"};
  auto knowing = one_codec{"zstd", small_objects()};
  const auto whole = blind.encode(key_of(1), object);
  const auto apart = knowing.encode(key_of(1), object);
  EXPECT_EQ(header_of(*apart).planes, 2);
  EXPECT_LT(apart->size(), whole->size());
  EXPECT_LT(apart->size(), object.size() * 3 / 4);
  // Each decodes what the other wrote.
  EXPECT_EQ(blind.decode(key_of(1), *apart, object.size()), object);
  EXPECT_EQ(knowing.decode(key_of(1), *whole, object.size()), object);
}

TEST(ObjectCodecTest, TellsTheEncodedLengthBeforehandUnlessItCompresses) {
  for (const auto* chain : {"fp8", "aes-256-gcm", "fp8+aes-256-gcm"}) {
    auto codec = one_codec{chain, small_objects()};
    for (const auto length : {uint64_t{0}, uint64_t{100}, object_bytes(small_objects())})
      EXPECT_EQ(codec.encode(key_of(1), page_bytes(length))->size(), codec->encoded_bytes(length));
  }
}

// -- damage -----------------------------------------------------------------------

TEST(ObjectCodecTest, AnyDamagedByteIsFound) {
  for (const auto& chain : all_chains) {
    auto codec = one_codec{chain, small_objects()};
    const auto object = elements_of(9, element_type::bf16, object_bytes(small_objects()));
    const auto encoded = codec.encode(key_of(1), object).value();
    ASSERT_TRUE(codec.decode(key_of(1), encoded, object.size()));
    for (auto at = size_t{0}; at < encoded.size(); ++at)
      for (const auto flip : {0x01, 0x80, 0xFF}) {
        auto damaged = encoded;
        damaged[at] ^= std::byte(flip);
        const auto back = codec.decode(key_of(1), damaged, object.size());
        ASSERT_EQ(code_of(back), ec::corrupt_page) << chain << ", byte " << at;
        EXPECT_FALSE(back.error().detail.empty());
      }
    for (auto length = size_t{0}; length < encoded.size(); ++length)
      ASSERT_EQ(code_of(codec.decode(key_of(1), {encoded.begin(), encoded.begin() + length},
                                     object.size())),
                ec::corrupt_page)
        << chain << ", length " << length;
  }
}

TEST(ObjectCodecTest, AnObjectOfAnotherPageOrNamespaceDoesNotDecode) {
  for (const auto& chain : all_chains) {
    auto codec = one_codec{chain, small_objects()};
    auto other = one_codec{chain, small_objects(), 8};
    const auto encoded = codec.encode(key_of(1), bytes_of(1, 100)).value();
    EXPECT_EQ(code_of(codec.decode(key_of(2), encoded, 100)), ec::corrupt_page) << chain;
    EXPECT_EQ(code_of(other.decode(key_of(1), encoded, 100)), ec::corrupt_page) << chain;
  }
}

TEST(ObjectCodecTest, PartsOfAnotherLengthAreTheCallersMistake) {
  for (const auto& chain : all_chains) {
    auto codec = one_codec{chain, small_objects()};
    const auto encoded = codec.encode(key_of(1), page_bytes(100)).value();
    for (const auto length : {size_t{0}, size_t{99}, size_t{101}, object_bytes(small_objects())})
      EXPECT_EQ(code_of(codec.decode(key_of(1), encoded, length)), ec::invalid_argument) << chain;
  }
}

TEST(ObjectCodecTest, EncryptedObjectsShowNothingOfTheirContent) {
  auto codec = one_codec{"aes-256-gcm"};
  const auto object = page_bytes(4096);
  const auto once = codec.encode(key_of(1), object).value();
  const auto twice = codec.encode(key_of(1), object).value();
  EXPECT_NE(header_of(once).nonce, header_of(twice).nonce);
  // Zeros became bytes that look random: about 16 of each value, and other ones each time.
  auto zeros
    = std::ranges::count(std::span{once}.subspan(serde::object_header_bytes), std::byte{0});
  EXPECT_LT(zeros, 60);
  EXPECT_FALSE(std::ranges::equal(std::span{once}.subspan(serde::object_header_bytes),
                                  std::span{twice}.subspan(serde::object_header_bytes)));
}

// -- keys -------------------------------------------------------------------------

TEST(ObjectCodecTest, EachTenantsObjectsHaveItsNewestKey) {
  auto codec = one_codec{"aes-256-gcm"};
  EXPECT_EQ(header_of(*codec.encode(key_of(1), bytes_of(1, 9))).key_id, "new");
  const auto its = codec.encode(key_of(1), bytes_of(1, 9), {}, tenant_of("a tenant"));
  EXPECT_EQ(header_of(*its).key_id, "its");
  EXPECT_EQ(codec.decode(key_of(1), *its, 9), bytes_of(1, 9));
}

TEST(ObjectCodecTest, WithoutAKeyForItsTenantAnObjectIsNotEncoded) {
  auto codec = one_codec{"aes-256-gcm", {}, 7, "a tenant k " + std::string(64, '1')};
  const auto encoded = codec.encode(key_of(1), bytes_of(1, 9));
  ASSERT_FALSE(encoded);
  EXPECT_EQ(encoded.error(),
            (error{ec::invalid_argument, "there is no key for tenant 0, and none for '*'"}));
}

TEST(ObjectCodecTest, RotatedKeysReadOldObjectsUntilTheyAreRemoved) {
  const auto old_key = "* old " + std::string(64, '1') + "\n";
  const auto new_key = "* new " + std::string(64, '2') + "\n";
  auto before = one_codec{"aes-256-gcm", {}, 7, old_key};
  auto between = one_codec{"aes-256-gcm", {}, 7, old_key + new_key};
  auto after = one_codec{"aes-256-gcm", {}, 7, new_key};
  const auto first = before.encode(key_of(1), bytes_of(1, 50)).value();
  const auto second = between.encode(key_of(2), bytes_of(2, 50)).value();
  EXPECT_EQ(between.decode(key_of(1), first, 50), bytes_of(1, 50));
  EXPECT_EQ(after.decode(key_of(2), second, 50), bytes_of(2, 50));
  const auto gone = after.decode(key_of(1), first, 50);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error(), (error{ec::corrupt_page, "an object is encrypted with the key 'old', "
                                                   "which is not among the keys"}));
  EXPECT_EQ(code_of(before.decode(key_of(2), second, 50)), ec::corrupt_page);
}

TEST(ObjectCodecTest, AnotherKeyOfTheSameNameDoesNotDecrypt) {
  auto codec = one_codec{"aes-256-gcm", {}, 7, "* k " + std::string(64, '1')};
  auto other = one_codec{"aes-256-gcm", {}, 7, "* k " + std::string(64, '2')};
  const auto back = other.decode(key_of(1), codec.encode(key_of(1), bytes_of(1, 50)).value(), 50);
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error(),
            (error{ec::corrupt_page, "an object does not decrypt with the key 'k': it is damaged, "
                                     "belongs to another page or namespace, or the key differs"}));
}

TEST(ObjectCodecTest, OpenObjectsAreNotTakenForEncryptedOnes) {
  auto open = one_codec{"zstd"};
  auto sealed = one_codec{"zstd+aes-256-gcm"};
  EXPECT_EQ(code_of(sealed.decode(key_of(1), open.encode(key_of(1), bytes_of(1, 50)).value(), 50)),
            ec::corrupt_page);
  EXPECT_EQ(code_of(open.decode(key_of(1), sealed.encode(key_of(1), bytes_of(1, 50)).value(), 50)),
            ec::corrupt_page);
}

// -- names ------------------------------------------------------------------------

TEST(ObjectCodecTest, LossyAndLosslessEncryptedAndOpenObjectsHaveDifferentNames) {
  auto names = std::vector<page_key>{key_of(1)};
  for (const auto* chain : {"zstd", "fp8", "aes-256-gcm", "fp8+aes-256-gcm"}) {
    auto codec = one_codec{chain, small_objects()};
    names.push_back(codec->object_name(key_of(1)));
    EXPECT_EQ(codec->object_name({}), page_key{});
    EXPECT_NE(codec->object_name(key_of(2)), names.back());
  }
  for (auto i = size_t{0}; i < names.size(); ++i)
    for (auto k = i + 1; k < names.size(); ++k)
      EXPECT_NE(names[i], names[k]) << i << " " << k;
  // Compression is not part of the name: each reads what the others wrote.
  const auto lz4 = one_codec{"lz4"};
  const auto both = one_codec{"fp8+zstd", small_objects()};
  EXPECT_EQ(lz4->object_name(key_of(1)), names[1]);
  EXPECT_EQ(both->object_name(key_of(1)), names[2]);
}

TEST(ObjectCodecTest, RefusesWhatCannotWork) {
  const auto make
    = [](const char* chain, int level, std::optional<serde::kv_object_shape> objects) {
        return code_of(serde::object_codec::make(
          {serde::parse_codec_chain(chain).value(), level, objects, 7}, serde::key_ring{}));
      };
  EXPECT_EQ(make("zstd", 3, {}), ec::none);
  EXPECT_EQ(make("zstd", 0, {}), ec::invalid_argument);
  EXPECT_EQ(make("zstd", 20, {}), ec::invalid_argument);
  EXPECT_EQ(make("fp8", 1, {}), ec::invalid_argument);
  EXPECT_EQ(make("aes-256-gcm", 1, {}), ec::invalid_argument);
}

} // namespace
} // namespace hicache::test
