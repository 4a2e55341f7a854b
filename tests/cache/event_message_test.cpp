// What routers read, compared byte by byte with messages of SGLang's and vLLM's own publishers.

#include "base/limits.hpp"
#include "cache/prefix/event_message.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <numeric>

namespace hicache {
namespace {

constexpr auto host = cache_medium::l2;
constexpr auto device = cache_medium::l1;
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

std::string message(event_format format, const cache_event& event, uint32_t page_size = 16) {
  return hex(event_message(format, moment, {&event, 1}, page_size));
}

/// The events of a message.
nlohmann::json read(const cache_event& event, uint32_t page_size,
                    event_format format = event_format::sglang) {
  return nlohmann::json::from_msgpack(event_message(format, moment, {&event, 1}, page_size)).at(1);
}

TEST(EventMessage, IsWhatSglangPublishes) {
  constexpr auto format = event_format::sglang;
  EXPECT_EQ(message(format, pages_stored{host, {}, {}, {key(-123456789)}, count_from(100, 16)}),
            "93cb41da3054981000009187a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573"
            "91d2f8a432ebb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc001064656667"
            "68696a6b6c6d6e6f70717273aa626c6f636b5f73697a6510a76c6f72615f6964c0a66d656469756daa43"
            "50555f50494e4e454400");
  EXPECT_EQ(message(format, pages_removed{host, {key(-123456789)}}),
            "93cb41da3054981000009183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865"
            "7391d2f8a432eba66d656469756daa4350555f50494e4e454400");
  EXPECT_EQ(message(format, cache_cleared{}),
            "93cb41da3054981000009181a474797065b0416c6c426c6f636b73436c656172656400");
  EXPECT_EQ(message(format, pages_stored{device, {"", "pepper"}, {}, {key(1), key(2)}, {7, 8}}, 1),
            "93cb41da3054981000009188a474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573"
            "920102b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920708aa626c6f636b5f"
            "73697a6501a76c6f72615f6964c0a66d656469756da3475055aa63616368655f73616c74a67065707065"
            "7200");
}

TEST(EventMessage, IsWhatVllmPublishes) {
  constexpr auto format = event_format::vllm;
  EXPECT_EQ(message(format, pages_stored{host, {}, {}, {key(-123456789)}, count_from(100, 16)}),
            "93cb41da305498100000918aa474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573"
            "91d2f8a432ebb1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473dc001064656667"
            "68696a6b6c6d6e6f70717273aa626c6f636b5f73697a6510a76c6f72615f6964c0a66d656469756da343"
            "5055a96c6f72615f6e616d65c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64"
            "ae66756c6c5f617474656e74696f6e00");
  EXPECT_EQ(message(format, pages_removed{host, {key(-123456789)}}),
            "93cb41da3054981000009183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865"
            "7391d2f8a432eba66d656469756da343505500");
  EXPECT_EQ(message(format, cache_cleared{}),
            "93cb41da3054981000009181a474797065b0416c6c426c6f636b73436c656172656400");
  EXPECT_EQ(message(format, pages_stored{device, {"", "pepper"}, {}, {key(1), key(2)}, {7, 8}}, 1),
            "93cb41da305498100000918ba474797065ab426c6f636b53746f726564ac626c6f636b5f686173686573"
            "920102b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920708aa626c6f636b5f"
            "73697a6501a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa6578747261"
            "5f6b6579739291a6706570706572c0a967726f75705f69647800b26b765f63616368655f737065635f6b69"
            "6e64ae66756c6c5f617474656e74696f6e00");
}

TEST(EventMessage, NamesTheAdapter) {
  const auto stored = pages_stored{device, {"adapter@2", "pepper"}, {}, {key(1), key(2)}, {7, 8}};
  const auto vllm = read(stored, 1, event_format::vllm).at(0);
  EXPECT_EQ(vllm.at("lora_name"), "adapter@2");
  EXPECT_EQ(vllm.at("extra_keys"),
            nlohmann::json::parse(R"([["adapter@2", "pepper"], ["adapter@2"]])"));
  const auto sglang = read(stored, 1).at(0);
  EXPECT_EQ(sglang.at("lora_name"), "adapter@2");
  EXPECT_EQ(sglang.at("cache_salt"), "pepper");
  EXPECT_FALSE(read(pages_stored{device, {}, {}, {key(1)}, {7}}, 1).at(0).contains("lora_name"));
}

TEST(EventMessage, NamesTheSaltOfVllmWithTheFirstPageOfAPrompt) {
  const auto later = pages_stored{device, {"", "pepper"}, key(3), {key(1), key(2)}, {7, 8}};
  EXPECT_EQ(read(later, 1, event_format::vllm).at(0).at("extra_keys"),
            nlohmann::json::parse("[null, null]"));
  const auto unsalted = pages_stored{device, {}, {}, {key(1)}, {7}};
  EXPECT_FALSE(read(unsalted, 1, event_format::vllm).at(0).contains("extra_keys"));
}

TEST(EventMessage, NamesTheParent) {
  const auto list = read(pages_stored{device, {}, key(-5), {key(7)}, {1, 2}}, 2);
  EXPECT_EQ(list.at(0).at("parent_block_hash"), -5);
}

TEST(EventMessage, HasPairsOfTokensWithBigrams) {
  const auto list = read(pages_stored{device, {}, {}, {key(7), key(8)}, {1, 2, 3}}, 1);
  EXPECT_EQ(list.at(0).at("token_ids"), nlohmann::json::parse("[[1,2],[2,3]]"));
}

TEST(EventMessage, IsDividedWhereRoutersWouldRefuseIt) {
  const auto pages = limits::router_event_pages + 3;
  auto keys = std::vector<page_key>{};
  for (auto i = size_t{0}; i < pages; ++i)
    keys.push_back(key(static_cast<int64_t>(i)));
  const auto stored = read(pages_stored{device, {}, {}, keys, count_from(0, pages)}, 1);
  ASSERT_EQ(stored.size(), 2);
  EXPECT_EQ(stored[0]["block_hashes"].size(), limits::router_event_pages);
  EXPECT_EQ(stored[0]["token_ids"].size(), limits::router_event_pages);
  EXPECT_EQ(stored[1]["parent_block_hash"], limits::router_event_pages - 1) << "the parent";
  EXPECT_EQ(stored[1]["token_ids"].size(), 3);
  const auto removed = read(pages_removed{device, keys}, 1);
  ASSERT_EQ(removed.size(), 2);
  EXPECT_EQ(removed[1]["block_hashes"].size(), 3);
  const auto large
    = read(pages_stored{device, {}, {}, {key(1), key(2)}, count_from(0, 2 << 20)}, 1 << 20);
  EXPECT_EQ(large.size(), 2);
}

} // namespace
} // namespace hicache
