#include "base/limits.hpp"
#include "messages/page_header.hpp"
#include "rpc/page_exchange.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

namespace hicache {
namespace {

constexpr auto page_size = uint32_t{256};
constexpr auto slot = slot_bytes_for(page_size);

page_key key_of(uint8_t number) {
  auto key = page_key{};
  key.bytes[0] = number;
  return key;
}

std::vector<std::byte> bytes_of(uint8_t number) {
  auto bytes = std::vector<std::byte>(page_size);
  for (auto i = size_t{0}; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + number);
  return bytes;
}

uint64_t checksum_of(const std::vector<std::byte>& bytes) {
  return page_checksum(std::array{std::span{bytes}});
}

class PageExchangeTest : public ::testing::Test {
protected:
  /// Of pages 1 to `count`, in slots one behind the other.
  void reserve(uint64_t reservation, uint8_t count) {
    auto keys = std::vector<page_key>{};
    auto got = reserved_pages{reservation, {}};
    for (auto number = uint8_t{1}; number <= count; ++number) {
      keys.push_back(key_of(number));
      got.places.push_back({place_status::writable, place_of(number), 1, page_size});
    }
    exchange_.reserved(keys, got);
  }

  static uint64_t place_of(uint8_t number) { return (number - 1) * slot; }

  ec write(uint64_t reservation, const std::vector<page_piece>& pieces,
           std::span<const std::byte> bytes) {
    return code_of(exchange_.write(reservation, pieces, bytes));
  }

  std::span<std::byte> object(uint8_t number) {
    return std::span{memory_}.subspan(place_of(number) + slot_object_offset, page_size);
  }

  /// Puts a page into its slot as a node does.
  void store(uint8_t number) {
    std::ranges::copy(bytes_of(number), object(number).begin());
    encode_page_header({1, 7, key_of(number), page_size, checksum_of(bytes_of(number))},
                       std::span{memory_}.subspan(place_of(number)).first<page_header_bytes>());
  }

  range_origin read(const page_range& wanted) {
    back_.assign(wanted.length, std::byte{});
    return exchange_.read(wanted, back_);
  }

  static ec code_of(const result<void>& done) { return done ? ec::none : done.error().code; }

  std::vector<std::byte> memory_ = std::vector<std::byte>(100 * slot);
  page_exchange exchange_{memory_};
  std::vector<std::byte> back_;
};

TEST_F(PageExchangeTest, BytesComeInPiecesAndTheCommitPassesWhenTheyFit) {
  reserve(5, 2);
  auto all = bytes_of(1);
  const auto second = bytes_of(2);
  all.insert(all.end(), second.begin(), second.end());
  const auto bytes = std::span{std::as_const(all)};
  EXPECT_EQ(write(5, {{key_of(1), 0, 100}}, bytes.first(100)), ec::none);
  const auto complete
    = complete_pages{5, {{key_of(1), checksum_of(bytes_of(1))}, {key_of(2), checksum_of(second)}}};
  EXPECT_EQ(code_of(exchange_.check(complete)), ec::invalid_argument) << "156 bytes are missing";
  EXPECT_EQ(write(5, {{key_of(1), 100, 156}, {key_of(2), 0, 256}}, bytes.subspan(100)), ec::none);
  EXPECT_EQ(code_of(exchange_.check(complete)), ec::none);
  EXPECT_TRUE(std::ranges::equal(object(1), bytes_of(1)));
  EXPECT_TRUE(std::ranges::equal(object(2), second));
  exchange_.end(5);
  EXPECT_EQ(code_of(exchange_.check(complete)), ec::unknown_id);
}

TEST_F(PageExchangeTest, BytesThatDoNotFitTheirChecksumAreNotCommitted) {
  reserve(5, 1);
  EXPECT_EQ(write(5, {{key_of(1), 0, page_size}}, bytes_of(1)), ec::none);
  EXPECT_EQ(code_of(exchange_.check({5, {{key_of(1), checksum_of(bytes_of(2))}}})),
            ec::corrupt_page);
}

TEST_F(PageExchangeTest, NothingIsWrittenBesideAReservation) {
  reserve(5, 1);
  const auto bytes = bytes_of(1);
  const auto piece = page_piece{key_of(1), 0, page_size};
  EXPECT_EQ(write(6, {piece}, bytes), ec::unknown_id);
  EXPECT_EQ(write(5, {{key_of(2), 0, page_size}}, bytes), ec::invalid_argument);
  EXPECT_EQ(write(5, {{key_of(1), 1, 10}}, std::span{bytes}.first(10)), ec::invalid_argument);
  EXPECT_EQ(write(5, {{key_of(1), 0, 0}}, {}), ec::invalid_argument);
  EXPECT_EQ(write(5, {{key_of(1), 0, page_size}}, std::span{bytes}.first(10)),
            ec::invalid_argument);
  EXPECT_EQ(write(5, {{key_of(1), 0, 10}}, bytes), ec::invalid_argument) << "more than was said";
  auto longer = bytes;
  longer.resize(page_size + 1);
  EXPECT_EQ(write(5, {{key_of(1), 10, page_size - 9}}, std::span{longer}.subspan(10)),
            ec::invalid_argument);
  EXPECT_EQ(write(5, {{key_of(1), 0, page_size}}, bytes), ec::invalid_argument) << "again";
  exchange_.end(5);
  EXPECT_EQ(write(5, {{key_of(1), 10, 20}}, std::span{bytes}.first(20)), ec::unknown_id);
  EXPECT_TRUE(std::ranges::all_of(std::span{memory_}.subspan(slot_object_offset + 10),
                                  [](auto x) { return x == std::byte{}; }));
}

TEST_F(PageExchangeTest, PagesThatAreBegunAreBounded) {
  constexpr auto most = static_cast<uint8_t>(limits::node_client_requests);
  reserve(5, most + 1);
  const auto bytes = bytes_of(1);
  for (auto number = uint8_t{1}; number <= most; ++number)
    EXPECT_EQ(write(5, {{key_of(number), 0, 1}}, std::span{bytes}.first(1)), ec::none);
  EXPECT_EQ(write(5, {{key_of(most + 1), 0, 1}}, std::span{bytes}.first(1)), ec::limit_reached);
  EXPECT_EQ(write(5, {{key_of(1), 1, page_size - 1}}, std::span{bytes}.subspan(1)), ec::none);
  EXPECT_EQ(write(5, {{key_of(most + 1), 0, 1}}, std::span{bytes}.first(1)), ec::none);
  exchange_.end(5);
  reserve(6, most);
  for (auto number = uint8_t{1}; number <= most; ++number)
    EXPECT_EQ(write(6, {{key_of(number), 0, 1}}, std::span{bytes}.first(1)), ec::none);
}

TEST_F(PageExchangeTest, RangesOfPagesAreReadWithWhatVouchesForThem) {
  store(2);
  const auto origin = range_origin{range_status::there, 7, checksum_of(bytes_of(2))};
  EXPECT_EQ(read({key_of(2), place_of(2), 1, 0, page_size}), origin);
  EXPECT_EQ(back_, bytes_of(2));
  EXPECT_EQ(read({key_of(2), place_of(2), 1, 200, 56}), origin);
  const auto bytes = bytes_of(2);
  EXPECT_TRUE(std::ranges::equal(back_, std::span{bytes}.subspan(200)));
}

TEST_F(PageExchangeTest, OnlyThePageThatIsNamedIsRead) {
  store(2);
  const auto nothing = std::vector<std::byte>(10);
  const auto status_of = [this](const page_range& wanted) { return read(wanted).status; };
  EXPECT_EQ(status_of({key_of(1), place_of(1), 1, 0, 10}), range_status::gone);
  for (const auto& wanted :
       {page_range{key_of(3), place_of(2), 1, 0, 10}, page_range{key_of(2), place_of(2), 2, 0, 10},
        page_range{key_of(2), place_of(2), 1, page_size - 9, 10},
        page_range{key_of(2), place_of(2), 1, UINT32_MAX, 10},
        page_range{key_of(2), memory_.size(), 1, 0, 10},
        page_range{key_of(2), memory_.size() - 10, 1, 0, 10},
        page_range{key_of(2), UINT64_MAX - 5, 1, 0, 10}}) {
    EXPECT_EQ(status_of(wanted), range_status::damaged);
    EXPECT_EQ(back_, nothing);
  }
  // A header that says more than there is.
  encode_page_header({1, 7, key_of(2), UINT64_MAX, 0},
                     std::span{memory_}.subspan(place_of(2)).first<page_header_bytes>());
  EXPECT_EQ(status_of({key_of(2), place_of(2), 1, 0, 10}), range_status::damaged);
}

} // namespace
} // namespace hicache
