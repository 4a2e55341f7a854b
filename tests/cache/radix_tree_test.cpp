// The tree on the device alone: matching, inserting, namespaces, recency, eviction.

#include "base/limits.hpp"
#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

#include <algorithm>

using namespace hicache;
using namespace hicache::test;

namespace {

tree_options l1_only(uint32_t page_size, uint32_t l1_tokens = 256) {
  return {.page_size = page_size, .l1_pages = l1_tokens / page_size, .layers = 2};
}

const auto A = range(1, 17);
const auto B = range(101, 117);
const auto C = range(201, 217);

using hit = tree_driver::hit;

} // namespace

TEST(RadixTree, InsertTellsWhatWasCached) {
  auto d = tree_driver{l1_only(1)};
  EXPECT_EQ(d.insert({1, 2, 3}), 0);
  EXPECT_EQ(d.insert({1, 2, 3}), 3);
  EXPECT_EQ(d.insert({1, 2, 4, 5}), 2);
  EXPECT_EQ(d.insert({1, 2, 4, 5, 6, 7}), 4);
  EXPECT_EQ(d.insert({8, 9, 10, 11, 12}), 0);
  EXPECT_EQ(d.total(), 12);
  EXPECT_EQ(d.match({1, 2, 3, 13, 14}), (hit{3, 0}));
}

TEST(RadixTree, CachesWholePages) {
  auto d = tree_driver{l1_only(4)};
  EXPECT_EQ(d.insert(range(0, 10)), 0);
  EXPECT_EQ(d.evictable(), 8);
  EXPECT_EQ(d.insert(range(0, 6) + tokens_t{77, 78}), 4);
  EXPECT_EQ(d.evictable(), 12);
  EXPECT_EQ(d.insert(range(0, 8) + tokens_t{1, 2, 3, 4}), 8);
  EXPECT_EQ(d.evictable(), 16);
  EXPECT_EQ(d.protected_size(), 0);
  EXPECT_EQ(d.match(range(0, 12)), (hit{8, 0}));
  EXPECT_EQ(d.match(range(0, 3)), (hit{0, 0}));
  EXPECT_EQ(d.match(range(0, 7)), (hit{4, 0}));
}

TEST(RadixTree, LessThanAPageIsNotCached) {
  auto d = tree_driver{l1_only(4)};
  EXPECT_EQ(d.match({}), (hit{0, 0}));
  EXPECT_EQ(d.match({1, 2, 3}), (hit{0, 0}));
  EXPECT_EQ(d.insert({1, 2, 3}), 0);
  EXPECT_EQ(d.total(), 0);
  EXPECT_EQ(d.tree.stats().l1_free, 64);
}

TEST(RadixTree, NamespacesShareNothing) {
  auto d = tree_driver{l1_only(1)};
  const auto spaces = std::vector<cache_namespace>{
    {"key1", ""}, {"key2", ""}, {}, {"", "a"}, {"", "b"}, {"e", "a"}, {"bc", "a"}, {"c", "ab"}};
  for (const auto& ns : spaces)
    EXPECT_EQ(d.insert({1, 2, 3}, ns), 0);
  for (const auto& ns : spaces)
    EXPECT_EQ(d.match({1, 2, 3}, ns), (hit{3, 0}));
  EXPECT_EQ(d.match({1, 2, 3}, {"e", ""}), (hit{0, 0}));
  EXPECT_EQ(d.match({1, 2, 3}, {"key3", ""}), (hit{0, 0}));
  EXPECT_EQ(d.total(), 3 * spaces.size());
}

TEST(RadixTree, SplitsKeepSizes) {
  for (const auto page_size : {1u, 2u}) {
    auto d = tree_driver{l1_only(page_size)};
    EXPECT_EQ(d.insert(range(1, 9)), 0);
    EXPECT_EQ(d.insert({1, 2, 9, 10}), 2);
    EXPECT_EQ(d.evictable(), 10);
    EXPECT_EQ(d.match({1, 2, 3, 4, 999, 1000}), (hit{4, 0}));
    EXPECT_EQ(d.match({1, 2, 3, 4, 5, 6, 777, 888}), (hit{6, 0}));
    EXPECT_EQ(d.evictable(), 10);
    EXPECT_EQ(d.match(range(1, 9)), (hit{8, 0}));
  }
}

TEST(RadixTree, DifferenceInsideAPageEndsTheMatchBeforeIt) {
  for (auto at = 0u; at < 16; ++at) {
    auto d = tree_driver{l1_only(4)};
    d.insert(A);
    auto other = A;
    other[at] = 999;
    EXPECT_EQ(d.match(other), (hit{at / 4 * 4, 0}));
  }
}

TEST(RadixTree, MatchStopsAtTheLimit) {
  auto d = tree_driver{l1_only(4)};
  d.insert(A);
  const auto matched = d.tree.match({100, {}, share(A), 15});
  ASSERT_TRUE(matched);
  EXPECT_EQ(matched->l1_tokens, 12);
  EXPECT_EQ(matched->l1_pages->size(), 3);
  d.settle();
}

TEST(RadixTree, EvictsTheLeastRecentlyUsedFirst) {
  auto d = tree_driver{l1_only(4, 48)};
  d.insert(A);
  d.insert(B);
  d.insert(C);
  d.match(A);
  EXPECT_EQ(d.evict(16), 16);
  EXPECT_EQ(d.match(B), (hit{0, 0}));
  EXPECT_EQ(d.match(A), (hit{16, 0}));
  EXPECT_EQ(d.match(C), (hit{16, 0}));
}

TEST(RadixTree, EvictsWholePagesFromTheTail) {
  auto d = tree_driver{l1_only(4)};
  d.insert(A);
  EXPECT_EQ(d.evict(4), 4);
  EXPECT_EQ(d.match(A), (hit{12, 0}));
  EXPECT_EQ(d.insert(A), 12);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
}

TEST(RadixTree, EvictsBranchesBeforeWhatTheyShare) {
  auto d = tree_driver{l1_only(4)};
  d.insert(A);
  d.insert(A + B);
  d.insert(A + C);
  EXPECT_EQ(d.evict(32), 32);
  EXPECT_EQ(d.match(A + B), (hit{16, 0}));
  EXPECT_EQ(d.evict(16), 16);
  EXPECT_EQ(d.tree.stats().nodes, 0);
}

TEST(RadixTree, LocksCountAndProtectAncestors) {
  auto d = tree_driver{l1_only(4)};
  d.insert(A + B);
  const auto first = d.open(A + B);
  const auto second = d.open(A + B);
  EXPECT_EQ(d.evict(32), 0);
  d.close(first);
  EXPECT_EQ(d.evict(32), 0);
  EXPECT_EQ(d.protected_size(), 32);
  d.close(second);
  EXPECT_EQ(d.evictable(), 32);
  EXPECT_EQ(d.evict(32), 32);
}

TEST(RadixTree, LockOfAPartLeavesTheRestEvictable) {
  auto d = tree_driver{l1_only(4)};
  d.insert(A);
  const auto request = d.open(range(1, 9));
  EXPECT_EQ(d.evictable(), 8);
  EXPECT_EQ(d.evict(16), 8);
  EXPECT_EQ(d.match(A), (hit{8, 0}));
  d.close(request);
}

TEST(RadixTree, AllocationThatCannotSucceedEvictsNothing) {
  auto d = tree_driver{l1_only(4, 48)};
  d.insert(A);
  const auto locked = d.open(A);
  d.insert(B);
  const auto request = d.open(C + C + C);
  const auto before = d.tree.digest();
  const auto result = d.tree.allocate({request, 36});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ec::out_of_device_pages);
  EXPECT_EQ(d.tree.digest(), before);
  EXPECT_EQ(d.tree.stats().evicted_l1, 0);
  EXPECT_TRUE(d.tree.allocate({request, 32}));
  EXPECT_EQ(d.tree.stats().evicted_l1, 4);
  d.close(request);
  d.close(locked);
}

TEST(RadixTree, RequestKeepsItsPartialPage) {
  auto d = tree_driver{l1_only(4)};
  const auto request = d.open(range(1, 7));
  EXPECT_TRUE(d.compute(request, range(1, 7)));
  EXPECT_EQ(d.insert_open(request, range(1, 7)).l1_pages->size(), 2);
  EXPECT_EQ(d.total(), 4);
  EXPECT_EQ(d.tree.stats().l1_free, 62);
  // Decoding goes on in the page that was begun.
  const auto longer = range(1, 12);
  EXPECT_TRUE(d.compute(request, longer));
  EXPECT_EQ(d.tree.stats().l1_free, 61);
  EXPECT_EQ(d.insert_open(request, longer).duplicate_tokens, 0);
  EXPECT_EQ(d.total(), 8);
  d.close(request);
  EXPECT_EQ(d.tree.stats().l1_free, 62);
  EXPECT_EQ(d.match(longer), (hit{8, 0}));
}

TEST(RadixTree, DuplicatesAreFreedAndReplaced) {
  auto d = tree_driver{l1_only(4)};
  const auto slow = d.open(A + B);
  EXPECT_TRUE(d.compute(slow, A + B));
  d.insert(A);
  const auto result = d.insert_open(slow, A + B);
  EXPECT_EQ(result.duplicate_tokens, 16);
  EXPECT_EQ(result.l1_pages->size(), 8);
  EXPECT_EQ(d.total(), 32);
  EXPECT_EQ(d.tree.stats().l1_free, 64 - 8);
  d.close(slow);
}

TEST(RadixTree, WrongUseIsAnErrorAndChangesNothing) {
  auto d = tree_driver{l1_only(4)};
  d.insert(A);
  const auto request = d.open(A);
  const auto before = d.tree.digest();
  const auto code = [](const auto& result) { return result ? ec::none : result.error().code; };
  EXPECT_EQ(code(d.tree.match({request, {}, share(A), 4})), ec::invalid_argument);
  EXPECT_EQ(code(d.tree.match({99, {}, share(A), 17})), ec::invalid_argument);
  EXPECT_EQ(code(d.tree.match({99, {}, nullptr, 0})), ec::invalid_argument);
  EXPECT_EQ(code(d.tree.allocate({99, 4})), ec::unknown_id);
  EXPECT_EQ(code(d.tree.allocate({request, limits::request_tokens + 1})), ec::limit_reached);
  EXPECT_EQ(code(d.tree.prefetch(99)), ec::unknown_id);
  EXPECT_EQ(code(d.tree.schedule(99)), ec::unknown_id);
  EXPECT_EQ(code(d.tree.load_back({99})), ec::unknown_id);
  EXPECT_EQ(code(d.tree.release(99)), ec::unknown_id);
  EXPECT_EQ(code(d.tree.insert({99, share(A)})), ec::unknown_id);
  EXPECT_EQ(code(d.tree.insert({request, nullptr})), ec::invalid_argument);
  EXPECT_EQ(code(d.tree.insert({request, share(range(1, 9))})), ec::invalid_argument);
  EXPECT_EQ(code(d.tree.insert({request, share(A + B)})), ec::invalid_argument);
  EXPECT_EQ(code(d.tree.insert({request, share(B)})), ec::invalid_argument);
  EXPECT_EQ(d.tree.digest(), before);
  d.close(request);
}

TEST(RadixTree, OpenRequestsAreBounded) {
  auto d = tree_driver{l1_only(4)};
  const auto none = share({});
  for (auto id = request_id{1}; id <= limits::requests_open; ++id)
    ASSERT_TRUE(d.tree.match({id, {}, none, 0}));
  const auto refused = d.tree.match({limits::requests_open + 1, {}, none, 0});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ec::limit_reached);
  EXPECT_TRUE(d.tree.release(1));
  EXPECT_TRUE(d.tree.match({limits::requests_open + 1, {}, none, 0}));
}

TEST(RadixTree, StoppedTreeServesNothing) {
  auto d = tree_driver{l1_only(4)};
  d.insert(A);
  const auto request = d.open(A + B);
  EXPECT_TRUE(d.compute(request, A + B));
  d.tree.stop_serving();
  EXPECT_EQ(d.match(A), (hit{0, 0}));
  EXPECT_EQ(d.insert_open(request, A + B).l1_pages->size(), 8);
  d.close(request);
  EXPECT_EQ(d.total(), 16);
}

TEST(RadixTree, DigestFollowsTheState) {
  auto a = tree_driver{l1_only(4)};
  auto b = tree_driver{l1_only(4)};
  EXPECT_EQ(a.tree.digest(), b.tree.digest());
  a.insert(A);
  EXPECT_NE(a.tree.digest(), b.tree.digest());
  b.insert(A);
  EXPECT_EQ(a.tree.digest(), b.tree.digest());
  // Recency alone makes a difference: it decides who is evicted.
  a.match(A);
  EXPECT_NE(a.tree.digest(), b.tree.digest());
  b.match(B);
  EXPECT_NE(a.tree.digest(), b.tree.digest());
}

TEST(RadixTree, DigestTellsWhichTokens) {
  auto a = tree_driver{l1_only(4)};
  auto b = tree_driver{l1_only(4)};
  a.insert(A);
  b.insert(B);
  EXPECT_NE(a.tree.digest(), b.tree.digest());
}

TEST(RadixTree, DeepPathsAreFreedWithoutRecursion) {
  auto d = tree_driver{{.page_size = 1, .l1_pages = 3000, .layers = 1}};
  for (auto n = 1u; n <= 2000; n += 100)
    d.insert(range(0, n));
  EXPECT_EQ(d.tree.stats().nodes, 20);
  EXPECT_EQ(d.evict(3000), 1901);
  EXPECT_EQ(d.tree.stats().nodes, 0);
}

TEST(PageOrder, IsThatOfTheOptions) {
  for (const auto order : {page_order::newest_first, page_order::ascending}) {
    auto d = tree_driver{{.page_size = 4, .l1_pages = 4, .order = order}};
    const auto first = d.open(range(1, 9));
    const auto second = d.open(range(101, 109));
    ASSERT_TRUE(d.compute(first, range(1, 9)));
    ASSERT_TRUE(d.compute(second, range(101, 109)));
    d.close(first);
    d.close(second);
    const auto both = d.open(range(201, 217));
    const auto taken = d.tree.allocate({both, 16});
    ASSERT_TRUE(taken);
    EXPECT_EQ(std::ranges::is_sorted(*taken->l1_pages), order == page_order::ascending);
    d.close(both);
  }
}
