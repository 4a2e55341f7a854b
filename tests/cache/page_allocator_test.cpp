#include "cache/page_allocator.hpp"

#include <gtest/gtest.h>

#include <vector>

using namespace hicache;

using pages = std::vector<page_index>;

TEST(PageAllocator, HandsOutAscendingPagesWithoutThePaddingPage) {
  auto pool = page_allocator{4};
  EXPECT_EQ(pool.free(), 4);
  EXPECT_EQ(pool.take(3), (pages{1, 2, 3}));
  EXPECT_EQ(pool.take(1), pages{4});
  EXPECT_EQ(pool.free(), 0);
}

TEST(PageAllocator, GivesAllOrNothing) {
  auto pool = page_allocator{4};
  EXPECT_EQ(pool.take(5), std::nullopt);
  EXPECT_EQ(pool.free(), 4);
  EXPECT_EQ(pool.take(0), pages{});
  EXPECT_EQ(pool.take(4), (pages{1, 2, 3, 4}));
  EXPECT_EQ(pool.take(1), std::nullopt);
}

TEST(PageAllocator, ReusesThePagesGivenBackLast) {
  auto pool = page_allocator{5};
  pool.take(4);
  pool.give_back(pages{2, 4});
  EXPECT_EQ(pool.free(), 3);
  EXPECT_FALSE(pool.is_taken(2));
  EXPECT_TRUE(pool.is_taken(3));
  EXPECT_EQ(pool.take(3), (pages{4, 2, 5}));
}

TEST(PageAllocator, DigestTellsWhatComesNext) {
  auto a = page_allocator{8};
  auto b = page_allocator{8};
  EXPECT_EQ(a.digest(), b.digest());
  a.take(4);
  EXPECT_NE(a.digest(), b.digest());
  b.take(4);
  a.give_back(pages{1, 2});
  b.give_back(pages{2, 1});
  EXPECT_NE(a.digest(), b.digest());
  a.take(2);
  b.take(2);
  EXPECT_EQ(a.digest(), b.digest());
}

TEST(PageAllocatorDeathTest, NamesThePageThatIsGivenBackTwice) {
  auto pool = page_allocator{4};
  pool.take(3);
  pool.give_back(pages{2});
  EXPECT_DEATH(pool.give_back(pages{2}), "page 2 of a pool of 4 pages");
  EXPECT_DEATH(pool.give_back(pages{3, 3}), "page 3 ");
}

TEST(PageAllocatorDeathTest, NamesThePageThatWasNeverTaken) {
  auto pool = page_allocator{4};
  pool.take(1);
  EXPECT_DEATH(pool.give_back(pages{0}), "page 0 ");
  EXPECT_DEATH(pool.give_back(pages{4}), "page 4 ");
  EXPECT_DEATH(pool.give_back(pages{5}), "page 5 ");
}
