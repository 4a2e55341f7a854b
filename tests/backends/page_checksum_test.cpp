#include "base/page_checksum.hpp"
#include "tests/backends/backend_support.hpp"

#include <gtest/gtest.h>

#include <random>

namespace hicache {
namespace {

TEST(PageChecksumTest, DependsOnTheBytesAndNotOnTheParts) {
  auto bytes = test::bytes_of(1, 5000);
  const auto whole = page_checksum(test::cut(bytes, {}));
  EXPECT_EQ(page_checksum(test::cut(bytes, {1})), whole);
  EXPECT_EQ(page_checksum(test::cut(bytes, {0, 240, 0, 4000})), whole);
  const auto& constant = bytes;
  EXPECT_EQ(page_checksum(test::cut(constant, {17})), whole);
  bytes[4999] ^= std::byte{1};
  EXPECT_NE(page_checksum(test::cut(bytes, {})), whole);
}

TEST(PageChecksumTest, TakesShortAndLongPartsInAnyOrder) {
  auto bytes = test::bytes_of(2, 100000);
  const auto whole = page_checksum(test::cut(bytes, {}));
  constexpr auto seed = 20250612;
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto random = std::mt19937{seed};
  for (auto round = 0; round < 200; ++round) {
    auto lengths = std::vector<size_t>{};
    const auto longest = round % 2 == 0 ? size_t{300} : size_t{9000};
    for (auto left = bytes.size(); left > longest; left -= lengths.back())
      lengths.push_back(random() % longest);
    EXPECT_EQ(page_checksum(test::cut(bytes, lengths)), whole) << "round " << round;
  }
}

TEST(PageChecksumTest, CopiesAndHashesAtATime) {
  const auto bytes = test::bytes_of(3, 100000);
  const auto whole = page_checksum(test::cut(bytes, {}));
  constexpr auto seed = 20251122;
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto random = std::mt19937{seed};
  for (const auto longest : {size_t{3}, size_t{300}, size_t{8192}, size_t{8193}, size_t{30000}}) {
    auto lengths = std::vector<size_t>{};
    for (auto left = bytes.size(); left > longest; left -= lengths.back())
      lengths.push_back(random() % longest);
    auto copy = std::vector<std::byte>(bytes.size());
    EXPECT_EQ(copy_object(bytes, test::cut(copy, lengths)), whole) << "parts up to " << longest;
    EXPECT_EQ(copy, bytes);
    auto object = std::vector<std::byte>(bytes.size());
    EXPECT_EQ(gather_object(test::cut(bytes, lengths), object), whole) << "from parts";
    EXPECT_EQ(object, bytes);
  }
  EXPECT_EQ(gather_object({}, {}), page_checksum(std::vector<std::span<std::byte>>{}));
  EXPECT_EQ(copy_object({}, {}), page_checksum(std::vector<std::span<std::byte>>{}));
}

TEST(PageChecksumTest, OfPiecesIsThatOfTheWhole) {
  const auto bytes = test::bytes_of(4, 50000);
  auto copy = std::vector<std::byte>(bytes.size());
  const auto targets = test::cut(copy, {100, 20000});
  auto sum = running_checksum{};
  const auto all = std::span{bytes};
  sum.copy(all.first(5000), targets);
  sum.copy(all.subspan(5000, 15100), std::span{targets}.subspan(1), 4900);
  sum.add(all.subspan(20100));
  EXPECT_EQ(sum.value(), page_checksum(test::cut(bytes, {})));
  std::ranges::copy(all.subspan(20100), copy.begin() + 20100);
  EXPECT_EQ(copy, bytes);
}

TEST(PageChecksumTest, IsXxh3) {
  // XXH3_64bits of no bytes, from the specification.
  EXPECT_EQ(page_checksum(std::vector<std::span<std::byte>>{}), 0x2d06800538d394c2u);
}

} // namespace
} // namespace hicache
