// What routers read, compared byte by byte with messages of SGLang's and vLLM's own publishers.

#include "base/limits.hpp"
#include "cache/event_message.hpp"
#include "cache/page_hash.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <numeric>

namespace hicache {
namespace {

constexpr auto host = cache_medium::host;
constexpr auto device = cache_medium::device;
const auto moment = std::bit_cast<double>(uint64_t{0x41da305498100000});

/// A key with this id.
page_key key(int64_t id) {
  auto made = page_key{};
  for (auto i = size_t{0}; i < sizeof(id); ++i)
    made.bytes[i] = static_cast<uint8_t>(static_cast<uint64_t>(id) >> (56 - 8 * i));
  return made;
}

std::vector<token_id> count_from(token_id first, size_t count) {
  auto tokens = std::vector<token_id>(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::string hex(const std::string& bytes) {
  auto text = std::string{};
  for (const auto byte : bytes)
    for (const auto digit : {static_cast<uint8_t>(byte) >> 4, static_cast<uint8_t>(byte) & 15})
      text += "0123456789abcdef"[digit];
  return text;
}

std::string message(const cache_event& event, uint32_t page_size = 16) {
  return hex(event_message(moment, {&event, 1}, page_size));
}

nlohmann::json read(const cache_event& event, uint32_t page_size) {
  return nlohmann::json::from_msgpack(event_message(moment, {&event, 1}, page_size));
}

TEST(EventMessage, IsWhatSglangPublishes) {
  EXPECT_EQ(message(pages_stored{host, {}, {}, {key(-123456789)}, count_from(100, 16)}),
            "93cb41da3054981000009197ab426c6f636b53746f72656491d2f8a432ebc0dc0010646566676869"
            "6a6b6c6d6e6f7071727310c0aa4350555f50494e4e454400");
  EXPECT_EQ(
    message(pages_removed{host, {key(-123456789)}}),
    "93cb41da3054981000009193ac426c6f636b52656d6f76656491d2f8a432ebaa4350555f50494e4e454400");
  EXPECT_EQ(message(cache_cleared{}),
            "93cb41da3054981000009191b0416c6c426c6f636b73436c656172656400");
}

TEST(EventMessage, NamesTheSaltWhereThereIsOne) {
  const auto tenant = cache_namespace{"", "tenant-a"};
  const auto seed = event_seed(tenant);
  const auto tokens = std::vector<token_id>{1, 2, 7, 8};
  const auto keys = hash_pages(tokens, 2, &*seed);
  EXPECT_EQ(message(pages_stored{device, tenant, {}, keys, tokens}, 2),
            "93cb41da3054981000009198ab426c6f636b53746f72656492cf006feb306a146eedcf41d4e9809872fe28"
            "c0940102070802c0a347505581aa63616368655f73616c74a874656e616e742d6100");
}

TEST(EventMessage, NamesTheParent) {
  const auto list = read(pages_stored{device, {}, key(-5), {key(7)}, {1, 2}}, 2).at(1);
  EXPECT_EQ(list, nlohmann::json::parse(R"([["BlockStored",[7],-5,[1,2],2,null,"GPU"]])"));
}

TEST(EventMessage, HasPairsOfTokensWithBigrams) {
  const auto list = read(pages_stored{device, {}, {}, {key(7), key(8)}, {1, 2, 3}}, 1).at(1);
  EXPECT_EQ(list,
            nlohmann::json::parse(R"([["BlockStored",[7,8],null,[[1,2],[2,3]],1,null,"GPU"]])"));
}

TEST(EventMessage, IsDividedWhereRoutersWouldRefuseIt) {
  const auto pages = limits::router_event_pages + 3;
  auto keys = std::vector<page_key>{};
  for (auto i = size_t{0}; i < pages; ++i)
    keys.push_back(key(static_cast<int64_t>(i)));
  const auto stored = read(pages_stored{device, {}, {}, keys, count_from(0, pages)}, 1).at(1);
  ASSERT_EQ(stored.size(), 2);
  EXPECT_EQ(stored[0][1].size(), limits::router_event_pages);
  EXPECT_EQ(stored[0][3].size(), limits::router_event_pages);
  EXPECT_EQ(stored[1][2], limits::router_event_pages - 1) << "the parent";
  EXPECT_EQ(stored[1][3].size(), 3);
  const auto removed = read(pages_removed{device, keys}, 1).at(1);
  ASSERT_EQ(removed.size(), 2);
  EXPECT_EQ(removed[1][1].size(), 3);
  const auto large
    = read(pages_stored{device, {}, {}, {key(1), key(2)}, count_from(0, 2 << 20)}, 1 << 20).at(1);
  EXPECT_EQ(large.size(), 2);
}

} // namespace
} // namespace hicache
