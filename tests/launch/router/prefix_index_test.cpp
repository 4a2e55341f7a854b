// Which pages the instances have, by the messages of a real publisher.

#include "cache/hash/page_hash.hpp"
#include "cache/prefix/event_message.hpp"
#include "launch/router/prefix_index.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <numeric>
#include <string>
#include <vector>

namespace hicache {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto page_size = uint32_t{4};
constexpr auto shape = page_shape{page_size, 0};

std::vector<token_id> tokens_from(token_id first, size_t count) {
  auto tokens = std::vector<token_id>(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<page_key> keys_of(const std::vector<token_id>& tokens, const std::string& salt = {}) {
  const auto seed = event_seed({{}, salt});
  return hash_pages(tokens, page_size, seed ? &*seed : nullptr);
}

/// All whole pages.
pages_stored stored(cache_medium medium, std::vector<token_id> tokens,
                    const std::string& salt = {}) {
  auto keys = keys_of(tokens, salt);
  tokens.resize(keys.size() * page_size);
  return {medium, {{}, salt}, {}, std::move(keys), std::move(tokens)};
}

pages_removed removed(cache_medium medium, const std::vector<token_id>& tokens, size_t first = 0) {
  auto keys = keys_of(tokens);
  keys.erase(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(first));
  return {medium, std::move(keys)};
}

class PrefixIndexTest : public testing::TestWithParam<event_format> {
protected:
  void tell(prefix_index& index, instance_slot slot, std::vector<cache_event> events) {
    const auto applied = index.apply(slot, event_message(GetParam(), 1.5, events, page_size));
    EXPECT_TRUE(applied) << applied.error().detail;
  }

  cached_prefix find(const prefix_index& index, instance_slot slot,
                     const std::vector<token_id>& tokens, const std::string& salt = {}) {
    return index.find(slot, name_prompt(tokens, salt, index.shapes()));
  }

  const std::vector<token_id> tokens_ = tokens_from(100, 18);
};

TEST_P(PrefixIndexTest, TheBeginningThatAnInstanceHasIsFound) {
  auto index = prefix_index{false};
  EXPECT_THAT(index.shapes(), testing::IsEmpty());
  EXPECT_EQ(find(index, 3, tokens_), cached_prefix{});
  tell(index, 3, {stored(cache_medium::l1, tokens_from(100, 12))});
  EXPECT_THAT(index.shapes(), ElementsAre(shape));
  EXPECT_EQ(find(index, 3, tokens_), (cached_prefix{12, 0, 0}));
  EXPECT_EQ(find(index, 3, tokens_from(100, 11)), (cached_prefix{8, 0, 0})) << "whole pages";
  EXPECT_EQ(find(index, 3, tokens_from(101, 12)), cached_prefix{});
  EXPECT_EQ(find(index, 4, tokens_), cached_prefix{}) << "another instance";
  EXPECT_EQ(index.pages(3), 3u);
  EXPECT_EQ(index.pages(4), 0u);
}

TEST_P(PrefixIndexTest, APageStaysFoundWhileOneTierHasIt) {
  auto index = prefix_index{false};
  tell(index, 0, {stored(cache_medium::l1, tokens_), stored(cache_medium::l2, tokens_)});
  tell(index, 0, {removed(cache_medium::l1, tokens_, 1)});
  EXPECT_EQ(find(index, 0, tokens_), (cached_prefix{4, 12, 0}));
  tell(index, 0, {removed(cache_medium::l2, tokens_, 3)});
  EXPECT_EQ(find(index, 0, tokens_), (cached_prefix{4, 8, 0}));
  tell(index, 0, {removed(cache_medium::l2, tokens_, 3)});
  EXPECT_EQ(index.pages(0), 3u) << "removed twice counts once";
  tell(index, 0, {cache_cleared{}});
  EXPECT_EQ(find(index, 0, tokens_), cached_prefix{});
  EXPECT_EQ(index.size(), 0u);
}

TEST_P(PrefixIndexTest, TenantsShareNothing) {
  auto index = prefix_index{false};
  tell(index, 0, {stored(cache_medium::l1, tokens_, "tenant")});
  EXPECT_EQ(find(index, 0, tokens_), cached_prefix{});
  EXPECT_EQ(find(index, 0, tokens_, "tenant"), (cached_prefix{16, 0, 0}));
}

TEST_P(PrefixIndexTest, WhatOneInstanceHadTheOthersFindInASharedL3) {
  for (const auto shares_l3 : {false, true}) {
    auto index = prefix_index{shares_l3};
    tell(index, 0, {stored(cache_medium::l1, tokens_)});
    tell(index, 1, {stored(cache_medium::l2, tokens_from(100, 4))});
    const auto rest = uint64_t{shares_l3 ? 12u : 0u};
    EXPECT_EQ(find(index, 1, tokens_), (cached_prefix{0, 4, rest}));
    index.forget(0);
    EXPECT_EQ(find(index, 1, tokens_), (cached_prefix{0, 4, rest}));
    EXPECT_EQ(find(index, 0, tokens_), (cached_prefix{0, 0, shares_l3 ? 16u : 0u}));
    EXPECT_EQ(index.pages(0), 0u);
    EXPECT_EQ(index.pages(1), 1u);
  }
}

TEST_P(PrefixIndexTest, TheIndexIsBounded) {
  auto index = prefix_index{true, 4};
  tell(index, 0, {stored(cache_medium::l1, tokens_)});
  tell(index, 1, {stored(cache_medium::l1, tokens_from(500, 8))});
  EXPECT_EQ(index.size(), 4u) << "all are held";
  EXPECT_EQ(find(index, 1, tokens_from(500, 8)), cached_prefix{});
  tell(index, 0, {removed(cache_medium::l1, tokens_, 2)});
  tell(index, 1, {stored(cache_medium::l1, tokens_from(500, 8))});
  EXPECT_EQ(index.size(), 4u);
  EXPECT_EQ(find(index, 1, tokens_from(500, 8)), (cached_prefix{8, 0, 0}));
  EXPECT_EQ(find(index, 0, tokens_), (cached_prefix{8, 0, 0})) << "L3's were forgotten";
}

INSTANTIATE_TEST_SUITE_P(Formats, PrefixIndexTest,
                         testing::Values(event_format::sglang, event_format::vllm));

std::string pack(const json& message) {
  auto bytes = std::string{};
  json::to_msgpack(message, bytes);
  return bytes;
}

TEST(EventMessageTest, BigramsAreSeenByTheirPairs) {
  auto index = prefix_index{false};
  const auto tokens = tokens_from(7, 9);
  const auto keys = hash_pages(tokens, page_size, nullptr, 1);
  const auto events = std::vector<cache_event>{
    pages_stored{cache_medium::l1, {}, {}, keys, tokens},
  };
  ASSERT_TRUE(index.apply(0, event_message(event_format::sglang, 0, events, page_size)));
  EXPECT_THAT(index.shapes(), ElementsAre(page_shape{page_size, 1}));
  EXPECT_EQ(index.find(0, name_prompt(tokens, {}, index.shapes())), (cached_prefix{8, 0, 0}));
}

TEST(EventMessageTest, OtherEventsAreSkipped) {
  auto index = prefix_index{false};
  EXPECT_TRUE(index.apply(0, pack({1.5, json::array({{{"type", "Heartbeat"}}, 7}), 0})));
  EXPECT_EQ(index.size(), 0u);
}

TEST(EventMessageTest, WhatIsNoMessageIsRefusedWithASentence) {
  auto index = prefix_index{false};
  const auto stored = [](json ids, json size) {
    return json{0, json::array({{{"type", "BlockStored"},
                                 {"block_hashes", std::move(ids)},
                                 {"block_size", std::move(size)}}})};
  };
  for (const auto& [bytes, expected] : std::vector<std::pair<std::string, std::string>>{
         {"", "MessagePack"},
         {"\xc1", "MessagePack"},
         {pack(7), "an array"},
         {pack({1, 2}), "a list of events"},
         {pack(stored({"text"}, 4)), "numbers as block_hashes"},
         {pack(stored(nullptr, 4)), "numbers as block_hashes"},
         {pack(stored({1}, 0)), "block_size from 1 to 4096"},
         {pack(stored({1}, -1)), "block_size from 1 to 4096"},
         {pack(stored({1}, nullptr)), "block_size from 1 to 4096"},
         {std::string(1'000'000, '\x91'), "MessagePack"}}) {
    const auto applied = index.apply(0, bytes);
    ASSERT_FALSE(applied) << expected;
    EXPECT_EQ(applied.error().code, ec::malformed_message);
    EXPECT_THAT(applied.error().detail, HasSubstr(expected));
  }
  EXPECT_EQ(index.size(), 0u);
}

} // namespace
} // namespace hicache
