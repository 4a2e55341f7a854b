// Keys of token pairs (speculative decoding with EAGLE): n tokens are n - 1 units.

#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

using namespace hicache;
using namespace hicache::test;

namespace {

tree_options bigrams(uint32_t page_size) {
  return {.page_size = page_size,
          .l1_pages = 512 / page_size,
          .l2_pages = 512 / page_size,
          .prefetch_reserve_pages = 64 / page_size,
          .prefetch = {.threshold_tokens = 1},
          .storage_attached = true,
          .bigram = true};
}

using hit = tree_driver::hit;

} // namespace

// Case K2.
TEST(Bigrams, MatchComparesPairs) {
  auto d = tree_driver{bigrams(1)};
  d.insert({1, 2, 3, 4, 5});
  EXPECT_EQ(d.match({1, 2, 3, 9, 5}), (hit{2, 0}));
  EXPECT_EQ(d.match({1, 2, 3, 4, 5}), (hit{4, 0}));
  EXPECT_EQ(d.match({1, 2}), (hit{1, 0}));
  EXPECT_EQ(d.match({1}), (hit{0, 0}));
  EXPECT_EQ(d.match({}), (hit{0, 0}));
  EXPECT_EQ(d.insert({1, 2, 3, 9, 5}), 2);
  EXPECT_EQ(d.match({1, 2, 3, 9, 5}), (hit{4, 0}));
  EXPECT_EQ(d.total(), 6);
}

TEST(Bigrams, PagesOverlapByOneToken) {
  auto d = tree_driver{bigrams(64)};
  auto other = range(0, 130);
  other[70] = 1000;
  d.insert(range(0, 130));
  EXPECT_EQ(d.match(other), (hit{64, 0}));
  EXPECT_EQ(d.match(range(0, 128)), (hit{64, 0})) << "the second page looks at token 128";
  EXPECT_EQ(d.match(range(0, 129)), (hit{128, 0}));
  auto border = range(0, 130);
  border[64] = 1000;
  EXPECT_EQ(d.match(border), (hit{0, 0}));
}

TEST(Bigrams, TravelThroughAllTiers) {
  auto d = tree_driver{bigrams(4)};
  const auto tokens = range(1, 34);
  d.insert(tokens);
  d.finish();
  EXPECT_EQ(d.backups, (std::vector<uint64_t>{8}));
  d.evict(512);
  EXPECT_EQ(d.match(tokens), (hit{0, 32}));
  EXPECT_EQ(d.load_back(tokens), 32);
  d.finish();
  EXPECT_EQ(d.match(tokens), (hit{32, 0}));
  auto fresh = tree_driver{bigrams(4)};
  fresh.store = d.store;
  const auto request = fresh.open(tokens);
  EXPECT_EQ(fresh.tree.prefetch(request)->tokens, 32);
  fresh.settle();
  EXPECT_FALSE(fresh.tree.schedule(request)->ready);
  fresh.settle();
  fresh.run_all();
  fresh.poll();
  EXPECT_EQ(fresh.match(tokens), (hit{0, 32}));
  fresh.close(request);
}

TEST(Bigrams, InsertOfFewerTokensThanItsPagesNeedIsRefused) {
  auto d = tree_driver{bigrams(4)};
  d.insert(range(1, 10));
  const auto request = d.open(range(1, 10));
  ASSERT_TRUE(d.compute(request, range(1, 10)));
  EXPECT_FALSE(d.tree.insert({request, share(range(1, 9))}));
  EXPECT_TRUE(d.tree.insert({request, share(range(1, 10))}));
  d.close(request);
}
