#include "cache/radix/page_allocator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
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

TEST(PageAllocator, TracksPagesAcrossWordsOfItsBitmap) {
  auto pool = page_allocator{200};
  ASSERT_TRUE(pool.take(130));
  pool.give_back(pages{63, 64, 65, 128});
  for (auto page = page_index{0}; page <= 201; ++page) {
    const auto free = page == 0 || page == 63 || page == 64 || page == 65 || page == 128;
    EXPECT_EQ(pool.is_taken(page), !free && page <= 130) << page;
  }
}

TEST(PageAllocator, AscendingOrderSortsFreedPagesInWhenThePoolRunsShort) {
  auto pool = page_allocator{6, page_order::ascending};
  ASSERT_TRUE(pool.take(4));
  pool.give_back(pages{3});
  pool.give_back(pages{1});
  EXPECT_EQ(pool.free(), 4);
  EXPECT_EQ(pool.take(1), pages{5}) << "freed pages wait while the free list suffices";
  EXPECT_EQ(pool.take(2), (pages{1, 3}));
  pool.give_back(pages{4, 2});
  EXPECT_EQ(pool.take(3), (pages{2, 4, 6}));
  EXPECT_EQ(pool.free(), 0);
}

TEST(PageAllocator, AscendingOrderRefusesMoreThanFreeAndWaitingPages) {
  auto pool = page_allocator{4, page_order::ascending};
  ASSERT_TRUE(pool.take(3));
  pool.give_back(pages{3, 1});
  const auto before = pool.digest();
  EXPECT_EQ(pool.take(4), std::nullopt);
  EXPECT_EQ(pool.digest(), before);
  EXPECT_EQ(pool.take(3), (pages{1, 3, 4}));
}

TEST(PageAllocator, AGroupFreesItsPagesWhenItEnds) {
  auto pool = page_allocator{4};
  ASSERT_TRUE(pool.take(4));
  pool.begin_group();
  auto buffer = pages{2, 3};
  pool.give_back(buffer);
  buffer.assign({1, 4});
  EXPECT_TRUE(pool.in_group());
  EXPECT_EQ(pool.free(), 0);
  EXPECT_EQ(pool.take(1), std::nullopt);
  EXPECT_FALSE(pool.is_taken(2));
  pool.end_group();
  EXPECT_FALSE(pool.in_group());
  EXPECT_EQ(pool.take(2), (pages{3, 2}));
}

TEST(PageAllocator, TheOutermostGroupCounts) {
  auto pool = page_allocator{4};
  ASSERT_TRUE(pool.take(4));
  pool.begin_group();
  pool.give_back(pages{1});
  pool.begin_group();
  pool.give_back(pages{2});
  pool.end_group();
  EXPECT_EQ(pool.free(), 0);
  pool.give_back(pages{3});
  pool.end_group();
  EXPECT_EQ(pool.take(3), (pages{3, 2, 1}));
}

TEST(PageAllocator, AGroupLeavesNothingBehind) {
  auto pool = page_allocator{4};
  ASSERT_TRUE(pool.take(4));
  for (const auto page : pages{1, 2}) {
    pool.begin_group();
    pool.give_back(pages{page});
    pool.end_group();
  }
  EXPECT_EQ(pool.take(3), std::nullopt);
  EXPECT_EQ(pool.take(2), (pages{2, 1}));
}

TEST(PageAllocator, AscendingOrderSortsWhatAGroupFreed) {
  auto pool = page_allocator{4, page_order::ascending};
  ASSERT_TRUE(pool.take(4));
  pool.begin_group();
  pool.give_back(pages{3, 1});
  EXPECT_EQ(pool.free(), 0);
  pool.end_group();
  EXPECT_EQ(pool.take(2), (pages{1, 3}));
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

TEST(PageAllocator, DigestTellsWhatAGroupWillFree) {
  auto a = page_allocator{8};
  auto b = page_allocator{8};
  a.take(4);
  b.take(4);
  const auto before = a.digest();
  a.begin_group();
  EXPECT_NE(a.digest(), before);
  b.begin_group();
  a.give_back(pages{1, 2});
  b.give_back(pages{2, 1});
  EXPECT_NE(a.digest(), b.digest());
  a.end_group();
  b.end_group();
  EXPECT_NE(a.digest(), b.digest());
  a.take(2);
  b.take(2);
  EXPECT_EQ(a.digest(), before);
  EXPECT_EQ(a.digest(), b.digest());
}

TEST(PageAllocator, DigestTellsWaitingPagesButNotTheirOrder) {
  auto a = page_allocator{8, page_order::ascending};
  auto b = page_allocator{8, page_order::ascending};
  a.take(8);
  b.take(8);
  const auto before = a.digest();
  a.give_back(pages{1, 2});
  EXPECT_NE(a.digest(), before);
  b.give_back(pages{2, 1});
  EXPECT_EQ(a.digest(), b.digest());
  a.take(1);
  EXPECT_NE(a.digest(), b.digest());
  b.take(1);
  EXPECT_EQ(a.digest(), b.digest());
  a.give_back(pages{1});
  a.take(2);
  EXPECT_EQ(a.digest(), before) << "sorting leaves nothing of the old lists in the digest";
}

namespace {

/// What the pool hands out, written for clarity: a free list, a list of waiting pages, a group.
class naive_pool {
public:
  naive_pool(page_index capacity, page_order order) : order_(order) {
    for (auto page = page_index{1}; page <= capacity; ++page)
      list_.push_back(page);
  }

  std::optional<pages> take(size_t count) {
    if (count > list_.size() + waiting_.size())
      return std::nullopt;
    if (count > list_.size()) {
      list_.insert(list_.end(), waiting_.begin(), waiting_.end());
      std::sort(list_.begin(), list_.end());
      waiting_.clear();
    }
    const auto end = list_.begin() + static_cast<std::ptrdiff_t>(count);
    auto taken = pages(list_.begin(), end);
    list_.erase(list_.begin(), end);
    return taken;
  }

  void give_back(const pages& given) {
    for (const auto page : given)
      if (grouping)
        grouped_.push_back(page);
      else if (order_ == page_order::ascending)
        waiting_.push_back(page);
      else
        list_.insert(list_.begin(), page);
  }

  void end_group() {
    grouping = false;
    give_back(grouped_);
    grouped_.clear();
  }

  size_t free() const { return list_.size() + waiting_.size(); }

  bool grouping = false;

private:
  page_order order_;
  pages list_;
  pages waiting_;
  pages grouped_;
};

void compare_with_naive_pool(page_order order, uint32_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto random = std::mt19937{seed};
  const auto capacity = static_cast<uint32_t>(1 + random() % 300);
  auto naive = naive_pool{capacity, order};
  auto pool = page_allocator{capacity, order};
  auto taken = pages{};
  for (auto step = 0; step < 400; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    if (const auto choice = random() % 10; choice < 5) {
      const auto count = random() % (capacity / 4 + 2);
      const auto got = pool.take(count);
      ASSERT_EQ(got, naive.take(count));
      if (got)
        taken.insert(taken.end(), got->begin(), got->end());
    } else if (choice < 9) {
      std::shuffle(taken.begin(), taken.end(), random);
      const auto count = std::min<size_t>(taken.size(), random() % (capacity / 4 + 2));
      const auto given = pages(taken.end() - static_cast<std::ptrdiff_t>(count), taken.end());
      taken.resize(taken.size() - count);
      pool.give_back(given);
      naive.give_back(given);
    } else if (naive.grouping) {
      pool.end_group();
      naive.end_group();
    } else {
      pool.begin_group();
      naive.grouping = true;
    }
    ASSERT_EQ(pool.free(), naive.free());
  }
}

} // namespace

TEST(PageAllocator, HandsOutWhatANaivePoolDoes) {
  for (auto seed = 0u; seed < 100; ++seed) {
    compare_with_naive_pool(page_order::newest_first, seed);
    compare_with_naive_pool(page_order::ascending, seed);
    if (HasFatalFailure())
      return;
  }
}

TEST(PageAllocator, HeldPagesAreFreeWhenTheyAreReleasedAndGivenBack) {
  auto pool = page_allocator{4};
  pool.take(4);
  pool.hold(pages{1, 2});
  pool.hold(pages{2});
  EXPECT_EQ(pool.held_in_use(), 2u);
  const auto digest = pool.digest();
  pool.give_back(pages{1, 2, 3});
  EXPECT_EQ(pool.free(), 1u);
  EXPECT_EQ(pool.held_back(), 2u);
  EXPECT_EQ(pool.held_in_use(), 0u);
  EXPECT_NE(pool.digest(), digest);
  pool.release(pages{1, 2});
  EXPECT_EQ(pool.take(2), (pages{1, 3})) << "the one freed last comes first";
  EXPECT_EQ(pool.free(), 0u) << "page 2 is held twice";
  pool.release(pages{2});
  EXPECT_EQ(pool.take(1), pages{2});
  pool.hold(pages{4});
  pool.release(pages{4});
  EXPECT_TRUE(pool.is_taken(4)) << "its owner still has it";
  pool.give_back(pages{1, 2, 3, 4});
  EXPECT_EQ(pool.free(), 4u);
}

TEST(PageAllocatorDeathTest, NamesAHeldPageThatIsGivenBackTwice) {
  auto pool = page_allocator{4};
  pool.take(1);
  pool.hold(pages{1});
  pool.give_back(pages{1});
  EXPECT_DEATH(pool.give_back(pages{1}), "is_given_back");
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

TEST(PageAllocatorDeathTest, NamesThePageThatIsTwiceInAGroup) {
  auto pool = page_allocator{4};
  pool.take(4);
  pool.begin_group();
  pool.give_back(pages{2});
  EXPECT_DEATH(pool.give_back(pages{2}), "page 2 ");
}

TEST(PageAllocatorDeathTest, EndsNoGroupThatDidNotBegin) {
  auto pool = page_allocator{4};
  pool.begin_group();
  pool.end_group();
  EXPECT_DEATH(pool.end_group(), "in_group");
}
