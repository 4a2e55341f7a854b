#include "cache/tiers/byte_budget.hpp"
#include "cache/tiers/tier_rules.hpp"
#include "cache/tiers/use_history.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

constexpr auto start = time_point{1h};

TEST(TierWritesTest, RulesAreReadAndPrinted) {
  for (const auto* text : {"all", "evict", "never", "hits:1", "hits:1000"}) {
    const auto writes = parse_tier_writes(text);
    ASSERT_TRUE(writes) << text;
    EXPECT_EQ(to_string(*writes), text);
  }
  for (const auto* text : {"", "ALL", "hits", "hits:", "hits:0", "hits:1001", "hits:2x", "evicted"})
    EXPECT_EQ(
      parse_tier_writes(text).error(),
      (error{ec::invalid_argument, "expected all, evict, never, or hits:N with N from 1 to 1000"}))
      << text;
}

TEST(TierRulesTest, TheSecondUsePromotes) {
  const auto rules = tier_rules{};
  EXPECT_FALSE(is_copied(rules, 1, true));
  EXPECT_TRUE(is_copied(rules, 2, true));
  EXPECT_TRUE(is_copied(rules, 3, true)) << "what was promoted may have been evicted since";
  EXPECT_FALSE(is_copied(rules, 2, false)) << "a tier that takes all writes has it from the start";
}

TEST(TierRulesTest, ATierTakesObjectsAtTheirNthUse) {
  const auto rules = tier_rules{*parse_tier_writes("hits:3"), false};
  EXPECT_FALSE(is_copied(rules, 2, false));
  EXPECT_TRUE(is_copied(rules, 3, false));
  EXPECT_FALSE(is_copied(rules, 4, false)) << "once is enough";
  EXPECT_TRUE(is_copied(rules, 3, true)) << "a tier above likewise, without promotion";
  EXPECT_FALSE(is_copied({*parse_tier_writes("never"), false}, 2, true));
}

TEST(UseHistoryTest, CountsUsesWithinTheWindow) {
  auto history = use_history{4};
  EXPECT_EQ(history.use(key_of(1)), 1u);
  EXPECT_EQ(history.use(key_of(1)), 2u);
  for (auto i = uint64_t{10}; i < 14; ++i)
    EXPECT_EQ(history.use(key_of(i)), 1u);
  EXPECT_EQ(history.use(key_of(1)), 3u) << "the older generation has it";
  for (auto i = uint64_t{20}; i < 30; ++i)
    EXPECT_EQ(history.use(key_of(i)), 1u);
  EXPECT_EQ(history.use(key_of(1)), 1u) << "forgotten";
}

TEST(ByteBudgetTest, WithoutLimitsAllIsGranted) {
  auto budget = byte_budget{0, 0};
  for (auto i = 0; i < 100; ++i)
    EXPECT_TRUE(budget.take(uint64_t{1} << 60, start));
}

TEST(ByteBudgetTest, GrantsTheBytesOfASecond) {
  auto budget = byte_budget{100, 0};
  EXPECT_TRUE(budget.take(60, start));
  EXPECT_FALSE(budget.take(60, start));
  EXPECT_TRUE(budget.take(40, start));
  EXPECT_FALSE(budget.take(51, start + 500ms));
  EXPECT_TRUE(budget.take(50, start + 500ms));
  EXPECT_TRUE(budget.take(100, start + 10s)) << "unused seconds do not add up";
  EXPECT_FALSE(budget.take(1, start + 10s));
}

TEST(ByteBudgetTest, AnObjectLongerThanASecondsBytesIsPaidBackLater) {
  auto budget = byte_budget{100, 0};
  EXPECT_TRUE(budget.take(300, start));
  EXPECT_FALSE(budget.take(100, start + 2s));
  EXPECT_TRUE(budget.take(100, start + 3s));
}

TEST(ByteBudgetTest, GrantsTheBytesOfADay) {
  auto budget = byte_budget{0, 86400};
  EXPECT_TRUE(budget.take(86400, start));
  EXPECT_FALSE(budget.take(10, start + 9s));
  EXPECT_TRUE(budget.take(10, start + 10s));
}

TEST(ByteBudgetTest, WhatIsGivenBackIsGrantedAgain) {
  auto budget = byte_budget{100, 200};
  EXPECT_TRUE(budget.take(100, start));
  EXPECT_FALSE(budget.take(40, start));
  budget.give_back(40);
  EXPECT_TRUE(budget.take(40, start));
  budget.give_back(500);
  EXPECT_TRUE(budget.take(100, start));
  EXPECT_FALSE(budget.take(1, start)) << "no more than a second's bytes";
  EXPECT_TRUE(budget.take(100, start + 1s));
  EXPECT_FALSE(budget.take(100, start + 2s)) << "nor than a day's";
  auto unlimited = byte_budget{0, 0};
  unlimited.give_back(100);
  EXPECT_TRUE(unlimited.take(100, start));
}

} // namespace
} // namespace hicache::test
