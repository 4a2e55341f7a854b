// What a tier's budget of bytes lets through, and what is counted.

#include "tests/backends/tiered_fixture.hpp"

#include <chrono>
#include <vector>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

class TieredBudgetTest : public tiered_test {};

TEST_F(TieredBudgetTest, ABudgetHoldsForWhatIsEvicted) {
  add({}, object_bytes);
  auto& disk = add({parse_tier_writes("evict").value(), false, 0, object_bytes});
  auto& store = open();
  for (const auto number : {1u, 2u, 3u})
    ASSERT_TRUE(put(store, key_of(number), bytes_of(number, object_bytes)));
  EXPECT_TRUE(has_in(disk, 1));
  EXPECT_FALSE(has_in(disk, 2)) << "the day's bytes are written";
}

TEST_F(TieredBudgetTest, ATiersBudgetOfBytesLimitsItsWrites) {
  auto limited = tier_rules{};
  limited.bytes_per_second = 2 * object_bytes;
  auto& disk = add(limited);
  auto& store = open();
  const auto write = [&](uint64_t first) {
    auto bytes = std::vector<page_bytes>{};
    auto writes = std::vector<page_write>{};
    for (auto i = first; i < first + 3; ++i)
      bytes.push_back(bytes_of(i, object_bytes));
    for (auto i = first; i < first + 3; ++i)
      writes.push_back({key_of(i), {}, {bytes[i - first]}});
    return store.set(writes, no_deadline);
  };
  const auto first = write(1);
  EXPECT_TRUE(first[0] && first[1]);
  EXPECT_EQ(error_of(first[2]).code, ec::store_full);
  EXPECT_FALSE(has_in(disk, 3));
  clock_.advance(1s);
  EXPECT_TRUE(write(4)[1]);
}

TEST_F(TieredBudgetTest, WhatIsWrittenToATierAndWhatIsOverItsBudgetIsCounted) {
  add({parse_tier_writes("all").value(), false, 2 * object_bytes});
  add({parse_tier_writes("hits:1").value(), false, 0, object_bytes});
  auto& archive = add();
  auto& store = open();
  for (const auto number : {1u, 2u, 3u})
    EXPECT_TRUE(put(store, key_of(number), bytes_of(number, object_bytes)));
  for (const auto number : {1u, 2u})
    EXPECT_TRUE(is_right(number));
  archive.set_faults([](batch_kind) { return store_fault::full; });
  EXPECT_FALSE(put(store, key_of(4), bytes_of(4, object_bytes)));
  const auto tiers = store.health().tiers;
  ASSERT_EQ(tiers.size(), 3u);
  EXPECT_EQ(tiers[0].written_bytes, 2 * object_bytes);
  EXPECT_EQ(tiers[0].over_budget, 2u) << "objects 3 and 4";
  EXPECT_EQ(tiers[1].written_bytes, object_bytes) << "a copy";
  EXPECT_EQ(tiers[1].over_budget, 1u) << "the other copy";
  EXPECT_EQ(tiers[2].written_bytes, 3 * object_bytes) << "what failed is not counted";
  EXPECT_EQ(tiers[2].over_budget, 0u);
}

TEST_F(TieredBudgetTest, TheOnlyTierCountsWhatIsWritten) {
  add();
  auto& store = open();
  EXPECT_TRUE(put(store, key_of(1), bytes_of(1, object_bytes)));
  EXPECT_EQ(store.health().tiers.at(0).written_bytes, object_bytes);
}

TEST_F(TieredBudgetTest, AWriteThatFailsIsGivenBackToTheBudget) {
  auto& memory = add({parse_tier_writes("all").value(), true, 0, object_bytes});
  auto& disk = add({parse_tier_writes("hits:2").value(), false, 0, object_bytes});
  auto& store = open();
  for (auto* const tier : {&memory, &disk})
    tier->set_faults([](batch_kind kind) {
      return kind == batch_kind::write ? store_fault::full : store_fault::none;
    });
  EXPECT_EQ(error_of(put(store, key_of(1), bytes_of(1, object_bytes))).code, ec::store_full);
  memory.set_faults({});
  EXPECT_TRUE(put(store, key_of(1), bytes_of(1, object_bytes)));
  for (auto i = 0; i < 2; ++i)
    EXPECT_TRUE(is_right(1));
  EXPECT_FALSE(has_in(disk, 1));
  disk.set_faults({});
  put_in(memory, 2);
  for (auto i = 0; i < 2; ++i)
    EXPECT_TRUE(is_right(2));
  EXPECT_TRUE(has_in(disk, 2)) << "the copy that failed cost nothing";
  EXPECT_EQ(store.health().tiers.at(1).over_budget, 0u);
}

} // namespace
} // namespace hicache::test
