#include "messages/page_header.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

namespace hicache {
namespace {

using encoded_header = std::array<std::byte, page_header_bytes>;

page_header sample() {
  auto header = page_header{};
  header.generation = 0x01020304;
  header.fingerprint = 0x1112131415161718;
  for (auto i = size_t{0}; i < header.key.bytes.size(); ++i)
    header.key.bytes[i] = static_cast<uint8_t>(7 * i + 1);
  header.length = 81920;
  header.checksum = 0xf1f2f3f4f5f6f7f8;
  header.kept_check = 0x21222324;
  header.copies = 3;
  header.held = 1;
  return header;
}

encoded_header encode(const page_header& header) {
  auto bytes = encoded_header{};
  encode_page_header(header, bytes);
  return bytes;
}

TEST(PageHeaderTest, SurvivesRoundTrip) {
  const auto decoded = decode_page_header(encode(sample()));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, sample());
}

TEST(PageHeaderTest, EncodingOverwritesWhatWasThere) {
  auto bytes = encoded_header{};
  bytes.fill(std::byte{0xff});
  encode_page_header(sample(), bytes);
  EXPECT_EQ(bytes, encode(sample()));
}

TEST(PageHeaderTest, ReadsFromLongerAndUnalignedBytes) {
  const auto bytes = encode(sample());
  auto longer = std::vector<std::byte>(page_header_bytes + 40, std::byte{0xab});
  std::copy(bytes.begin(), bytes.end(), longer.begin() + 3);
  const auto decoded = decode_page_header(std::span{longer}.subspan(3));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(*decoded, sample());
}

TEST(PageHeaderTest, EveryTruncationIsCorrupt) {
  const auto bytes = encode(sample());
  for (auto length = size_t{0}; length < bytes.size(); ++length) {
    const auto decoded = decode_page_header(std::span{bytes}.first(length));
    ASSERT_FALSE(decoded) << length;
    EXPECT_EQ(decoded.error().code, ec::corrupt_page);
  }
}

TEST(PageHeaderTest, ClearedBytesAreCorrupt) {
  EXPECT_EQ(decode_page_header(encoded_header{}).error().code, ec::corrupt_page);
}

// A reader compares all fields with what it expects, so a flip that changes a field is found, too.
TEST(PageHeaderTest, EveryBitFlipFailsOrShowsInAField) {
  const auto bytes = encode(sample());
  auto silent = std::vector<size_t>{};
  for (auto bit = size_t{0}; bit < 8 * bytes.size(); ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto decoded = decode_page_header(flipped);
    if (decoded && *decoded == sample())
      silent.push_back(bit);
    if (!decoded) {
      EXPECT_EQ(decoded.error().code, ec::corrupt_page);
    }
  }
  EXPECT_TRUE(silent.empty()) << "first at bit " << silent.front();
}

TEST(PageHeaderTest, SaysWhetherItMayBeOne) {
  EXPECT_TRUE(may_be_page_header(encode(sample())));
  EXPECT_FALSE(may_be_page_header(encoded_header{}));
}

TEST(PageHeaderTest, AHoldIsOneByteAtAFixedPlace) {
  auto bytes = encode(sample());
  bytes[page_header_held_offset] = std::byte{0};
  auto released = sample();
  released.held = 0;
  EXPECT_EQ(decode_page_header(bytes), released);
}

TEST(PageHeaderTest, SlotsHoldHeaderAndObjectOnCacheLines) {
  EXPECT_GE(slot_object_offset, page_header_bytes);
  EXPECT_EQ(slot_bytes_for(1), 192u);
  EXPECT_EQ(slot_bytes_for(64), 192u);
  EXPECT_EQ(slot_bytes_for(65), 256u);
}

TEST(PageKeyTest, PrintsAsLowerCaseHexadecimal) {
  auto key = page_key{};
  key.bytes[0] = 0xab;
  key.bytes[1] = 0x05;
  key.bytes[31] = 0xff;
  EXPECT_EQ(to_string(key), "ab05" + std::string(58, '0') + "ff");
}

} // namespace
} // namespace hicache
