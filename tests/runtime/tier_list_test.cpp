// How the tiers of an extra configuration change.

#include "stores/tier_list.hpp"

#include <gmock/gmock.h>

namespace hicache {
namespace {

constexpr auto two
  = R"({"prefetch_threshold":16,"tiers":[{"backend":"memory"},{"backend":"file","path":"/a"}]})";
constexpr auto disk = R"({"path": "/d", "max_bytes": 5})";

std::string text_of(const result<std::string>& list) {
  return list ? *list : list.error().detail;
}

TEST(TierListTest, ATierIsPutAtItsNumber) {
  const auto expected = [](const char* tiers) {
    return R"({"prefetch_threshold":16,"tiers":[)" + std::string{tiers} + "]}";
  };
  EXPECT_EQ(
    text_of(with_tier(two, "disk", disk, std::nullopt)),
    expected(
      R"({"backend":"memory"},{"backend":"file","path":"/a"},{"backend":"disk","max_bytes":5,"path":"/d"})"));
  EXPECT_EQ(text_of(with_tier(two, "node", "", 1)),
            expected(R"({"backend":"node"},{"backend":"memory"},{"backend":"file","path":"/a"})"));
  for (const auto number : {size_t{0}, size_t{4}})
    EXPECT_EQ(text_of(with_tier(two, "node", "", number)),
              "L3 has no tier '" + std::to_string(number) + "'; expected a number from 1 to 3");
}

TEST(TierListTest, ATierIsFoundByItsNumberOrItsStore) {
  const auto memory = R"({"prefetch_threshold":16,"tiers":[{"backend":"memory"}]})";
  EXPECT_EQ(text_of(without_tier(two, "2")), memory);
  EXPECT_EQ(text_of(without_tier(two, "file")), memory);
  for (const auto* absent : {"0", "3", "disk", "", "1x", "99999999999999999999999"})
    EXPECT_EQ(text_of(without_tier(two, absent)),
              "L3 has no tier '" + std::string{absent}
                + "'; expected the name of a tier's store, or a number from 1 to 2");
  EXPECT_EQ(text_of(without_tier(memory, "1")),
            "L3 has no other tier; expected all of L3 to be detached instead");
  EXPECT_EQ(text_of(without_tier(R"({"tiers":[{"backend":"file"},{"backend":"file"}]})", "file")),
            "several tiers are file; expected the number of one");
}

TEST(TierListTest, WhatHasNoTiersIsNamed) {
  for (const auto* other : {"", "{}", "@l3.toml", "[]", R"({"tiers": 2})"}) {
    const auto* const sentence = "L3 has no tiers; expected it to be attached as tiered";
    EXPECT_EQ(text_of(with_tier(other, "disk", disk, std::nullopt)), sentence);
    EXPECT_EQ(text_of(without_tier(other, "1")), sentence);
    EXPECT_EQ(compare_tiers(other, two).error().detail, sentence);
    EXPECT_EQ(compare_tiers(two, other).error().detail, sentence);
  }
  for (const auto* keys : {"[]", "{", R"({"backend": "file"})"})
    EXPECT_EQ(text_of(with_tier(two, "disk", keys, std::nullopt)),
              "the keys of the tier are no JSON object, or name its store; expected others than "
              "'backend'");
}

TEST(TierListTest, ListsThatDifferInOneTierAreCompared) {
  for (auto number = size_t{1}; number <= 3; ++number) {
    const auto three = with_tier(two, "disk", disk, number).value();
    EXPECT_EQ(compare_tiers(two, three), (tier_difference{number - 1, true}));
    EXPECT_EQ(compare_tiers(three, two), (tier_difference{number - 1, false}));
  }
  const auto twice = with_tier(two, "memory", "", 1).value();
  EXPECT_TRUE(compare_tiers(two, twice)) << "of two that are equal any one is meant";
}

TEST(TierListTest, OtherChangesAreRefused) {
  const auto three = with_tier(two, "disk", disk, 1).value();
  const auto four = with_tier(three, "disk", disk, 1).value();
  const auto swapped = with_tier(without_tier(three, "memory").value(), "memory", "", 1).value();
  const auto elsewhere
    = with_tier(
        R"({"prefetch_threshold":16,"tiers":[{"backend":"memory"},{"backend":"file","path":"/b"}]})",
        "disk", disk, 1)
        .value();
  const auto later = R"({"prefetch_threshold":17,"tiers":[{"backend":"memory"}]})";
  for (const auto& other : {std::string{two}, four, elsewhere, std::string{later}})
    EXPECT_EQ(compare_tiers(two, other).error().detail,
              "tiered is attached; expected the same configuration with one tier more or one "
              "less, or L3 to be detached first")
      << other;
  EXPECT_FALSE(compare_tiers(three, swapped));
}

} // namespace
} // namespace hicache
