// Pages that an earlier process left in the memory of a segment.

#include "cache/store/segment_table.hpp"
#include "tests/cache_store/test_segment.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace hicache {
namespace {

using namespace hicache::test;

TEST(SegmentAdoptTest, PagesAreAdoptedAndWhatLiesBetweenIsFree) {
  auto table = table_of(10);
  table.expect_pages();
  EXPECT_EQ(reserve(table, page(9)).status, reserve_status::full);
  EXPECT_EQ(table.counters().used_bytes, 0u);
  EXPECT_TRUE(table.adopt(page(1, 2), 3, 70));
  EXPECT_EQ(table.counters().used_bytes, 2u);
  const auto found = table.find(key_of(1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->offset, 3u);
  EXPECT_EQ(found->generation, 70u);
  const auto before = store(table, page(9, 3));
  EXPECT_EQ(before.offset, 0u);
  EXPECT_GT(before.generation, 70u) << "no reader mistakes it for what was there";
  table.pass(10);
  EXPECT_EQ(store(table, page(8, 5)).offset, 5u);
  EXPECT_EQ(table.counters().used_bytes, 10u);
  EXPECT_EQ(table.counters().pages, 3u);
}

TEST(SegmentAdoptTest, AdoptedPagesGoBeforeOthersAndChildrenBeforeParents) {
  auto table = table_of(4);
  table.expect_pages();
  EXPECT_TRUE(table.adopt(page(3, 1, 2), 0, 1)); // Its parent comes behind it.
  EXPECT_TRUE(table.adopt(page(2), 1, 2));
  EXPECT_TRUE(table.adopt(page(1), 2, 3));
  table.pass(4);
  store(table, page(4));
  auto gone = std::vector<page_key>{};
  for (auto number = uint64_t{5}; number < 8; ++number)
    for (const auto& key : evicted_by(store(table, page(number))))
      gone.push_back(key);
  ASSERT_EQ(gone.size(), 3u);
  const auto at = [&gone](uint64_t number) { return std::ranges::find(gone, key_of(number)); };
  EXPECT_LT(at(3), at(2));
  EXPECT_NE(at(1), gone.end()) << "before the page that was stored since";
}

TEST(SegmentAdoptTest, AnAdoptedPageCountsForItsTenant) {
  auto policy = segment_policy{};
  policy.tenant_share = 0.5;
  auto table = segment_table{4, policy};
  table.expect_pages();
  EXPECT_TRUE(table.adopt(page(1, 1, {}, 7), 0, 1));
  EXPECT_TRUE(table.adopt(page(2, 1, {}, 7), 1, 2));
  table.pass(4);
  EXPECT_EQ(evicted_by(store(table, page(3, 1, {}, 7))).size(), 1u);
}

TEST(SegmentAdoptTest, WhatIsThereAlreadyIsNotAdopted) {
  auto table = table_of(4);
  table.expect_pages();
  table.pass(1);
  const auto writing = reserve(table, page(1));
  EXPECT_FALSE(table.adopt(page(1), 1, 9));
  table.pass(4);
  EXPECT_TRUE(table.publish(key_of(1), writing.generation));
  EXPECT_EQ(table.find(key_of(1))->offset, 0u);
  EXPECT_EQ(table.counters().used_bytes, 1u);
}

TEST(SegmentAdoptTest, AClosedTableAdoptsNothing) {
  auto table = table_of(4);
  table.expect_pages();
  table.close();
  EXPECT_FALSE(table.adopt(page(1), 0, 9));
}

} // namespace
} // namespace hicache
