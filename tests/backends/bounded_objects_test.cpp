#include "backends/bounded_objects.hpp"
#include "tests/backends/backend_support.hpp"

#include <gtest/gtest.h>

namespace hicache::test {
namespace {

constexpr auto none = page_key{};

class BoundedObjectsTest : public testing::Test {
protected:
  void write(uint64_t number, const page_key& parent = none, uint64_t bytes = 10) {
    ASSERT_TRUE(own_.begin_write(key_of(number), parent, bytes).is_there);
    ASSERT_TRUE(own_.end_write(key_of(number), true));
  }

  /// What is evicted for an object.
  std::vector<page_key> evicted_for(uint64_t number, const page_key& parent = none) {
    auto keys = std::vector<page_key>{};
    const auto room = own_.begin_write(key_of(number), parent, 10);
    for (const auto& gone : room.evicted)
      keys.push_back(gone.key);
    if (room.is_there)
      own_.end_write(key_of(number), true);
    return keys;
  }

  bounded_objects own_{30};
};

TEST_F(BoundedObjectsTest, TheLeastRecentlyUsedOneGoesFirst) {
  for (const auto number : {1u, 2u, 3u})
    write(number);
  own_.use(key_of(1));
  EXPECT_EQ(evicted_for(4), std::vector{key_of(2)});
  EXPECT_EQ(own_.size(), 3u);
  EXPECT_EQ(own_.bytes(), 30u);
  EXPECT_EQ(own_.evictions(), 1u);
}

TEST_F(BoundedObjectsTest, TellsWhenEachEvictedOneWasLastUsed) {
  write(1); // Before the time is known.
  own_.set_time(1000);
  write(2);
  own_.set_time(2000);
  own_.set_time(1500);
  write(3);
  const auto room = own_.begin_write(key_of(4), none, 20);
  ASSERT_EQ(room.evicted.size(), 2u);
  EXPECT_LT(room.evicted[0].used, 10);
  EXPECT_GE(room.evicted[1].used, 1000);
  EXPECT_LT(room.evicted[1].used, 1010);
  own_.set_time(9000);
  own_.use(key_of(3));
  own_.end_write(key_of(4), true);
  EXPECT_GE(own_.begin_write(key_of(5), none, 30).evicted.back().used, 9000);
}

TEST_F(BoundedObjectsTest, ChildrenGoBeforeTheirParents) {
  write(1);
  write(2, key_of(1));
  write(3, key_of(2));
  EXPECT_EQ(evicted_for(4), std::vector{key_of(3)});
}

TEST_F(BoundedObjectsTest, TheParentOfWhatIsWrittenStays) {
  for (const auto number : {1u, 2u, 3u})
    write(number);
  EXPECT_EQ(evicted_for(4, key_of(1)), std::vector{key_of(2)});
}

TEST_F(BoundedObjectsTest, WhatIsBeingWrittenStays) {
  for (const auto number : {1u, 2u, 3u})
    ASSERT_TRUE(own_.begin_write(key_of(number), none, 10).is_there);
  EXPECT_FALSE(own_.begin_write(key_of(4), none, 10).is_there);
  own_.miss(key_of(1));
  EXPECT_EQ(own_.size(), 3u) << "a reader cannot find it yet";
  EXPECT_TRUE(own_.end_write(key_of(1), true));
  EXPECT_EQ(evicted_for(4), std::vector{key_of(1)});
}

TEST_F(BoundedObjectsTest, AnObjectRemovedWhileItIsWrittenIsToBeRemovedAgain) {
  ASSERT_TRUE(own_.begin_write(key_of(1), none, 10).is_there);
  own_.remove(key_of(1));
  EXPECT_FALSE(own_.end_write(key_of(1), true));
  EXPECT_EQ(own_.bytes(), 0u);
}

TEST_F(BoundedObjectsTest, FailedWritesAndMissesDoNotCount) {
  ASSERT_TRUE(own_.begin_write(key_of(1), none, 10).is_there);
  EXPECT_TRUE(own_.end_write(key_of(1), false));
  EXPECT_EQ(own_.bytes(), 0u);
  write(2);
  own_.miss(key_of(2));
  EXPECT_EQ(own_.bytes(), 0u);
}

TEST_F(BoundedObjectsTest, AnObjectBeyondTheBoundHasNoRoom) {
  write(1);
  EXPECT_FALSE(own_.begin_write(key_of(2), none, 31).is_there);
  EXPECT_EQ(own_.size(), 1u) << "nothing was evicted for it";
}

} // namespace
} // namespace hicache::test
