// Pages that somebody reads in place.

#include "cache/store/segment_table.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

namespace hicache {
namespace {

using test::key_of;

constexpr auto no_time = time_point{};

segment_request page(uint64_t number, uint64_t bytes = 1, uint64_t tenant = 0) {
  return {key_of(number), {}, bytes, static_cast<uint32_t>(bytes), 0, tenant};
}

segment_table table_of(uint64_t bytes, double held_share = 1) {
  auto policy = segment_policy{};
  policy.held_share = held_share;
  return segment_table{bytes, policy};
}

/// Reserves and publishes; expects room.
reservation store(segment_table& table, const segment_request& wanted) {
  auto got = table.reserve(wanted, no_time);
  EXPECT_EQ(got.status, reserve_status::reserved);
  EXPECT_TRUE(table.publish(wanted.key, got.generation));
  return got;
}

TEST(PageHoldTest, AHeldPageIsNotEvictedUntilItIsReleased) {
  auto table = table_of(2);
  const auto held = store(table, page(1));
  store(table, page(2));
  EXPECT_EQ(table.hold(key_of(1)), table.find(key_of(1)));
  store(table, page(3));
  EXPECT_TRUE(table.find(key_of(1))) << "page 2 went, though it was used later";
  EXPECT_FALSE(table.find(key_of(2)));
  EXPECT_TRUE(table.release(held.offset, held.generation));
  store(table, page(4));
  EXPECT_FALSE(table.find(key_of(1)));
}

TEST(PageHoldTest, WhereAllIsHeldThereIsNoRoom) {
  auto table = table_of(1);
  store(table, page(1));
  ASSERT_TRUE(table.hold(key_of(1)));
  EXPECT_EQ(table.reserve(page(2), no_time).status, reserve_status::full);
}

TEST(PageHoldTest, AHeldPageDoesNotMove) {
  auto table = table_of(6);
  store(table, page(1, 2));
  const auto held = store(table, page(2, 2));
  store(table, page(3, 2));
  ASSERT_TRUE(table.hold(key_of(2)));
  ASSERT_TRUE(table.remove(key_of(1)));
  ASSERT_TRUE(table.remove(key_of(3)));
  // Four bytes are free, two on each side.
  EXPECT_EQ(table.reserve(page(4, 3), no_time).status, reserve_status::full);
  EXPECT_EQ(table.find(key_of(2))->offset, held.offset);
  ASSERT_TRUE(table.release(held.offset, held.generation));
  EXPECT_EQ(table.reserve(page(4, 3), no_time).status, reserve_status::reserved);
}

TEST(PageHoldTest, EachHoldHasToBeReleased) {
  auto table = table_of(1);
  const auto held = store(table, page(1));
  ASSERT_TRUE(table.hold(key_of(1)));
  ASSERT_TRUE(table.hold(key_of(1)));
  EXPECT_EQ(table.counters().held_bytes, 1u) << "counted once";
  EXPECT_TRUE(table.release(held.offset, held.generation));
  EXPECT_EQ(table.reserve(page(2), no_time).status, reserve_status::full);
  EXPECT_TRUE(table.release(held.offset, held.generation));
  EXPECT_EQ(table.counters().held_bytes, 0u);
  EXPECT_FALSE(table.release(held.offset, held.generation)) << "once too often";
  EXPECT_EQ(table.reserve(page(2), no_time).status, reserve_status::reserved);
}

TEST(PageHoldTest, ARemovedPageKeepsItsPlaceWhileItIsHeld) {
  auto table = table_of(2);
  const auto held = store(table, page(1));
  ASSERT_TRUE(table.hold(key_of(1)));
  ASSERT_TRUE(table.remove(key_of(1)));
  EXPECT_FALSE(table.find(key_of(1)));
  EXPECT_FALSE(table.hold(key_of(1))) << "for others it is gone";
  EXPECT_TRUE(table.published(0, 10).empty());
  EXPECT_EQ(table.counters().pages, 0u);
  EXPECT_EQ(table.counters().used_bytes, 1u);
  const auto again = store(table, page(1));
  EXPECT_NE(again.offset, held.offset);
  EXPECT_EQ(table.reserve(page(2, 2), no_time).status, reserve_status::full);
  EXPECT_EQ(table.counters().used_bytes, 1u) << "that of the held page; the other one went";
  EXPECT_TRUE(table.release(held.offset, held.generation));
  EXPECT_EQ(table.counters().used_bytes, 0u);
  EXPECT_EQ(table.reserve(page(2, 2), no_time).status, reserve_status::reserved);
}

TEST(PageHoldTest, ARemovedPageCountsForItsTenantWhileItIsHeld) {
  auto policy = segment_policy{};
  policy.tenant_share = 0.5;
  auto table = segment_table{4, policy};
  const auto held = store(table, page(1, 2, 7));
  ASSERT_TRUE(table.hold(key_of(1)));
  ASSERT_TRUE(table.remove(key_of(1)));
  EXPECT_EQ(table.reserve(page(2, 1, 7), no_time).status, reserve_status::full);
  ASSERT_TRUE(table.release(held.offset, held.generation));
  EXPECT_EQ(table.reserve(page(2, 1, 7), no_time).status, reserve_status::reserved);
}

TEST(PageHoldTest, HoldsTakeNoMoreThanTheirShare) {
  auto table = table_of(4, 0.5);
  for (auto number : {1, 2, 3})
    store(table, page(static_cast<uint64_t>(number)));
  EXPECT_TRUE(table.hold(key_of(1)));
  EXPECT_TRUE(table.hold(key_of(2)));
  EXPECT_FALSE(table.hold(key_of(3)));
  EXPECT_TRUE(table.hold(key_of(1))) << "costs nothing more";
}

TEST(PageHoldTest, APageThatIsBeingWrittenCannotBeHeld) {
  auto table = table_of(1);
  const auto got = table.reserve(page(1), no_time);
  EXPECT_FALSE(table.hold(key_of(1)));
  EXPECT_FALSE(table.release(got.offset, got.generation));
}

TEST(PageHoldTest, AnotherGenerationIsNotReleased) {
  auto table = table_of(1);
  const auto held = store(table, page(1));
  ASSERT_TRUE(table.hold(key_of(1)));
  EXPECT_FALSE(table.release(held.offset, held.generation + 1));
  EXPECT_FALSE(table.release(held.offset + 1, held.generation));
  EXPECT_EQ(table.counters().held_bytes, 1u);
}

} // namespace
} // namespace hicache
