// L1 and L2: write-through, demotion, load back, and what happens while copies are in flight.
// Page 4.

#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

using namespace hicache;
using namespace hicache::test;

namespace {

tree_options tiers(uint32_t l1_tokens = 64, uint32_t l2_tokens = 64) {
  return {.page_size = 4, .l1_pages = l1_tokens / 4, .l2_pages = l2_tokens / 4, .layers = 2};
}

const auto A = range(1, 17);
const auto B = range(101, 117);

using hit = tree_driver::hit;
using counts = std::vector<uint64_t>;

/// Everything that is pending becomes a fact.
void finish(tree_driver& d) {
  d.run_all();
  d.poll();
}

/// Leaves `tokens` on the host only.
void put_in_l2(tree_driver& d, const tokens_t& tokens) {
  d.insert(tokens);
  finish(d);
  d.evict(tokens.size());
  finish(d);
}

} // namespace

TEST(Tiers, PageGoesToTheHostAndComesBack) {
  auto d = tree_driver{tiers()};
  EXPECT_EQ(d.insert(A), 0);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
  EXPECT_EQ(d.protected_size(), 16);
  EXPECT_EQ(d.l2_free(), 48);
  EXPECT_TRUE(d.tree.in_flight());
  finish(d);
  EXPECT_FALSE(d.tree.in_flight());
  EXPECT_EQ(d.evictable(), 16);
  EXPECT_EQ(d.evict(16), 16);
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  EXPECT_EQ(d.load_back(A), 16);
  EXPECT_EQ(d.protected_size(), 16);
  finish(d);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
  EXPECT_EQ(d.evictable(), 16);
  EXPECT_EQ(d.writes, counts{4});
  EXPECT_EQ(d.loads, counts{4});
}

TEST(Tiers, APromptThatLeavesL1PageByPageBecomesOneNodeInL2) {
  auto d = tree_driver{tiers()};
  d.insert(A + B);
  finish(d);
  for (auto page = 0; page < 5; ++page)
    d.evict(4);
  EXPECT_EQ(d.tree.nodes().size(), 6u);
  finish(d);
  EXPECT_EQ(d.match(A + B), (hit{12, 20}));
  EXPECT_EQ(d.tree.nodes().size(), 2u);
  EXPECT_EQ(d.load_back(A + B), 20);
  finish(d);
  EXPECT_EQ(d.match(A + B), (hit{32, 0}));
}

TEST(Tiers, ANodeThatAnEngineKnowsIsNotJoined) {
  auto d = tree_driver{tiers()};
  d.insert(A + B);
  finish(d);
  const auto handle = d.tree.match({.request = 9, .tokens = share(A), .limit = A.size()})->node;
  ASSERT_TRUE(d.tree.release(9));
  EXPECT_EQ(d.match(A + B), (hit{32, 0}));
  d.evict(32);
  finish(d);
  EXPECT_EQ(d.tree.nodes().size(), 2u);
  EXPECT_TRUE(d.tree.lock(handle));
}

TEST(Tiers, SlowWriteProtectsItsPages) {
  auto d = tree_driver{tiers()};
  d.insert(A);
  d.poll();
  EXPECT_EQ(d.evict(16), 0);
  d.run_writes();
  EXPECT_EQ(d.evict(16), 0);
  d.poll();
  EXPECT_EQ(d.evict(16), 16);
  EXPECT_EQ(d.match(A), (hit{0, 16}));
}

TEST(Tiers, WritesBecomeFactsInOrder) {
  auto d = tree_driver{tiers()};
  d.insert(A);
  d.insert(B);
  d.poll();
  EXPECT_EQ(d.protected_size(), 32);
  d.run_writes(1);
  d.poll();
  EXPECT_EQ(d.evictable(), 16);
  EXPECT_EQ(d.evict(32), 16);
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  d.run_writes(1);
  d.poll();
  EXPECT_FALSE(d.tree.in_flight());
  EXPECT_EQ(d.evictable(), 16);
}

TEST(Tiers, WhatDoesNotFitOnTheHostIsLostWhenEvicted) {
  auto d = tree_driver{tiers(64, 8)};
  d.insert(A);
  EXPECT_FALSE(d.tree.in_flight());
  EXPECT_EQ(d.l2_free(), 8);
  EXPECT_EQ(d.evict(16), 8) << "the end; L2 takes the beginning";
  finish(d);
  EXPECT_EQ(d.match(A), (hit{0, 8}));
  EXPECT_EQ(d.tree.stats().nodes, 1);
}

TEST(Tiers, HostEvictsForNewerPages) {
  auto d = tree_driver{tiers(64, 16)};
  put_in_l2(d, A);
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  put_in_l2(d, B);
  EXPECT_EQ(d.match(A), (hit{0, 0}));
  EXPECT_EQ(d.match(B), (hit{0, 16}));
  EXPECT_EQ(d.tree.stats().evicted_l2, 4);
}

TEST(Tiers, HostEvictsFromTheTail) {
  auto d = tree_driver{tiers(64, 20)};
  put_in_l2(d, A);
  put_in_l2(d, range(101, 109));
  EXPECT_EQ(d.match(A), (hit{0, 12}));
  EXPECT_EQ(d.match(range(101, 109)), (hit{0, 8}));
}

TEST(Tiers, ABeginningIsKeptLongerThanWhatFollowsOnIt) {
  auto d = tree_driver{tiers(64, 16)};
  d.insert(A);
  finish(d);
  d.insert(A + B);
  EXPECT_FALSE(d.tree.in_flight());
  EXPECT_EQ(d.evict(16), 0);
  finish(d);
  EXPECT_EQ(d.match(A + B), (hit{16, 16})) << "A's copy makes room for its child";
  EXPECT_EQ(d.evict(16), 0);
  finish(d);
  EXPECT_EQ(d.match(A + B), (hit{0, 16})) << "and the child for its parent";
}

TEST(Tiers, PageIsNotWrittenBeforeItsParent) {
  auto d = tree_driver{tiers(64, 12)};
  d.insert(A);
  d.insert(A + range(101, 105));
  EXPECT_TRUE(d.writes.empty());
  EXPECT_EQ(d.evict(4), 0);
  finish(d);
  EXPECT_EQ(d.match(A + range(101, 105)), (hit{16, 4})) << "unless it leaves L1";
}

TEST(Tiers, WhatRemainsOfAVictimStaysAsOldAsItWas) {
  auto d = tree_driver{tiers()};
  d.insert(A);
  d.insert(B);
  finish(d);
  EXPECT_EQ(d.evict(4), 4);
  EXPECT_EQ(d.evict(12), 12);
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  EXPECT_EQ(d.match(B), (hit{16, 0}));
}

TEST(Tiers, SplitWhileAWriteIsInFlight) {
  auto d = tree_driver{tiers()};
  d.insert(range(1, 9));
  EXPECT_EQ(d.insert({1, 2, 3, 4, 91, 92, 93, 94}), 4);
  EXPECT_EQ(d.writes, (counts{2, 1}));
  EXPECT_EQ(d.evictable(), 0);
  finish(d);
  EXPECT_EQ(d.evictable(), 12);
  EXPECT_EQ(d.evict(12), 12);
  EXPECT_EQ(d.match(range(1, 9)), (hit{0, 8}));
  EXPECT_EQ(d.match({1, 2, 3, 4, 91, 92, 93, 94}), (hit{0, 8}));
  EXPECT_EQ(d.l2_free(), 52);
}

TEST(Tiers, ShortHostPartIsNotLoaded) {
  auto d = tree_driver{tiers()};
  put_in_l2(d, A);
  EXPECT_EQ(d.load_back(range(1, 9)), 0);
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  EXPECT_EQ(d.load_back(range(1, 13)), 12);
  finish(d);
  EXPECT_EQ(d.match(A), (hit{12, 4}));
}

TEST(Tiers, LoadBackEvictsOthers) {
  auto d = tree_driver{tiers(16)};
  put_in_l2(d, A);
  d.insert(B);
  finish(d);
  EXPECT_EQ(d.load_back(A), 16);
  finish(d);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
  EXPECT_EQ(d.match(B), (hit{0, 16}));
}

TEST(Tiers, LoadBackWithoutRoomChangesNothing) {
  auto d = tree_driver{tiers(16)};
  put_in_l2(d, A);
  d.insert(B);
  finish(d);
  const auto locked = d.open(B);
  const auto request = d.open(A);
  const auto before = d.tree.digest();
  const auto result = d.load(request);
  EXPECT_EQ(result.loading_tokens, 0);
  EXPECT_EQ(result.l1_tokens, 0);
  EXPECT_EQ(result.progress, nullptr);
  EXPECT_EQ(d.tree.digest(), before);
  d.close(request);
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  EXPECT_EQ(d.match(B), (hit{16, 0}));
  d.close(locked);
}

TEST(Tiers, LoadFollowsTheDevicePart) {
  auto d = tree_driver{tiers()};
  d.insert(A);
  d.insert(A + B);
  finish(d);
  EXPECT_EQ(d.evict(16), 16);
  EXPECT_EQ(d.match(A + B), (hit{16, 16}));
  const auto request = d.open(A + B);
  const auto result = d.load(request);
  EXPECT_EQ(result.l1_tokens, 32);
  EXPECT_EQ(result.loading_tokens, 16);
  EXPECT_EQ(result.from_storage_tokens, 0);
  EXPECT_EQ(result.l1_pages->size(), 8);
  ASSERT_TRUE(result.progress);
  EXPECT_EQ(result.progress->done(), 0);
  EXPECT_EQ(d.protected_size(), 32);
  d.run_loads();
  EXPECT_EQ(result.progress->done(), 2);
  d.poll();
  d.close(request);
  EXPECT_EQ(d.evictable(), 32);
}

TEST(Tiers, InsertAdoptsPagesForTheHostPartWithoutASecondWrite) {
  auto d = tree_driver{tiers()};
  put_in_l2(d, A);
  EXPECT_EQ(d.insert(A), 16);
  finish(d);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
  EXPECT_EQ(d.writes, counts{4});
}

TEST(Tiers, LoadedPagesAreEvictedWithoutASecondWrite) {
  auto d = tree_driver{tiers()};
  put_in_l2(d, A);
  d.load_back(A);
  finish(d);
  EXPECT_EQ(d.evict(16), 16);
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  EXPECT_EQ(d.writes, counts{4});
  EXPECT_EQ(d.loads, counts{4});
}

TEST(Tiers, SplitNodeNeedsNoSecondCopy) {
  auto d = tree_driver{tiers()};
  d.insert(A);
  finish(d);
  EXPECT_EQ(d.match(range(1, 9) + tokens_t{99, 99, 99, 99}), (hit{8, 0}));
  EXPECT_EQ(d.evict(8), 8);
  EXPECT_EQ(d.match(A), (hit{8, 8}));
  EXPECT_EQ(d.writes, counts{4});
}

TEST(Tiers, MatchSplitsNodesOnTheHost) {
  auto d = tree_driver{tiers()};
  put_in_l2(d, A);
  EXPECT_EQ(d.match(range(1, 9)), (hit{0, 8}));
  EXPECT_EQ(d.match(range(1, 7)), (hit{0, 4}));
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  const auto branch = range(1, 9) + range(101, 109);
  EXPECT_EQ(d.insert(branch), 8);
  finish(d);
  EXPECT_EQ(d.match(A), (hit{8, 8}));
  EXPECT_EQ(d.match(branch), (hit{16, 0}));
  EXPECT_EQ(d.writes, (counts{4, 2}));
}

TEST(Tiers, HostPartOfARequestStays) {
  auto d = tree_driver{tiers(64, 16)};
  put_in_l2(d, A);
  const auto request = d.open(A);
  d.insert(B);
  EXPECT_EQ(d.writes, counts{4});
  EXPECT_EQ(d.load(request).loading_tokens, 16);
  finish(d);
  d.close(request);
}

TEST(Tiers, LoadOutlivesItsRequest) {
  auto d = tree_driver{tiers(32, 16)};
  put_in_l2(d, A);
  EXPECT_EQ(d.load_back(A), 16);
  EXPECT_EQ(d.tree.stats().requests_open, 0);
  EXPECT_EQ(d.evict(16), 0);
  // The source stays, too.
  d.insert(B);
  EXPECT_EQ(d.writes, counts{4});
  finish(d);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
  EXPECT_EQ(d.evict(16), 0);
  finish(d);
  EXPECT_EQ(d.match(B), (hit{0, 16})) << "in the room of A's copy";
}

TEST(Tiers, SplitWhileALoadIsInFlight) {
  auto d = tree_driver{tiers()};
  put_in_l2(d, A);
  EXPECT_EQ(d.load_back(A), 16);
  EXPECT_EQ(d.match(range(1, 9)), (hit{8, 0}));
  EXPECT_EQ(d.evictable(), 0);
  const auto upper = d.open(range(1, 9));
  EXPECT_NE(d.load(upper).progress, nullptr);
  d.close(upper);
  finish(d);
  EXPECT_EQ(d.evictable(), 16);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
}

TEST(Tiers, SecondRequestWaitsForTheLoadItShares) {
  auto d = tree_driver{tiers()};
  put_in_l2(d, A);
  const auto first = d.open(A);
  const auto second = d.open(A);
  const auto third_progress = [&] {
    const auto third = d.open(A);
    auto progress = d.load(third).progress;
    d.close(third);
    return progress;
  };
  const auto progress = d.load(first).progress;
  const auto result = d.load(second);
  EXPECT_EQ(result.l1_tokens, 16);
  EXPECT_EQ(result.loading_tokens, 0);
  EXPECT_EQ(result.progress, progress);
  EXPECT_EQ(third_progress(), progress);
  EXPECT_EQ(d.loads, counts{4});
  finish(d);
  EXPECT_EQ(third_progress(), nullptr);
  d.close(first);
  d.close(second);
}

TEST(Tiers, RequestThatAllocatedFirstKeepsItsOwnPages) {
  auto d = tree_driver{tiers()};
  put_in_l2(d, A);
  const auto request = d.open(A);
  EXPECT_TRUE(d.compute(request, A));
  EXPECT_EQ(d.load(request).loading_tokens, 0);
  EXPECT_EQ(d.insert_open(request, A).duplicate_tokens, 0);
  d.close(request);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
}

TEST(Tiers, InsertOfAPartKeepsTheRestOfTheHostPart) {
  auto d = tree_driver{tiers()};
  put_in_l2(d, A);
  const auto request = d.open(A);
  EXPECT_TRUE(d.compute(request, range(1, 5)));
  d.insert_open(request, range(1, 5));
  const auto result = d.load(request);
  EXPECT_EQ(result.l1_tokens, 16);
  EXPECT_EQ(result.loading_tokens, 12);
  finish(d);
  d.close(request);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
}

TEST(Tiers, DevicePagesWithoutACopyAreWrittenForTheSakeOfTheirHostDescendants) {
  // B hangs on the host below A, which has no copy there.
  auto options = tiers(64, 24);
  options.write = write_policy::write_back;
  options.storage_attached = true;
  options.prefetch.threshold_tokens = 4;
  options.prefetch_reserve_pages = 4;
  auto d = tree_driver{options};
  d.insert(A);
  finish(d);
  EXPECT_TRUE(d.writes.empty());
  for (const auto& key : hash_pages(A + B, 4, nullptr))
    d.store[key] = first_word(key);
  const auto request = d.open(A + B);
  EXPECT_EQ(d.tree.prefetch(request)->tokens, 16);
  EXPECT_FALSE(d.tree.schedule(request)->ready);
  d.settle();
  finish(d);
  EXPECT_EQ(d.evict(16), 0);
  d.close(request);
  EXPECT_EQ(d.match(A + B), (hit{16, 16}));
  EXPECT_EQ(d.evict(4), 0);
  finish(d);
  EXPECT_EQ(d.match(A + B).first, 12);
  EXPECT_GE(d.match(A + B).second, 4);
}

TEST(Tiers, CopyMakesRoomAlthoughWhatHangsBelowItStays) {
  // C needs the room of A's copy; B below it is in L2 only.
  auto d = tree_driver{tiers(64, 32)};
  const auto C = range(201, 217);
  d.insert(A);
  d.insert(A + B);
  finish(d);
  EXPECT_EQ(d.evict(16), 16);
  d.insert(C);
  finish(d);
  EXPECT_EQ(d.match(A + B), (hit{16, 16}));
  EXPECT_EQ(d.evict(16), 0);
  finish(d);
  EXPECT_EQ(d.match(C), (hit{0, 16}));
  EXPECT_EQ(d.match(A + B), (hit{16, 16}));
  // The parent is written in its turn, as the child would be lost with it.
  EXPECT_EQ(d.evict(16), 0);
  finish(d);
  EXPECT_EQ(d.match(A + B), (hit{0, 32}));
}

TEST(Tiers, CopiesGoFromTheOneThatL1DropsLast) {
  auto d = tree_driver{tiers(64, 32)};
  d.insert(A);
  d.insert(B);
  finish(d);
  EXPECT_EQ(d.evict_l2(8), 8);
  EXPECT_EQ(d.evict(16), 16) << "A's copy is whole";
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  EXPECT_EQ(d.evict(8), 0) << "B's lost its end";
  finish(d);
  EXPECT_EQ(d.match(B), (hit{8, 8}));
  EXPECT_EQ(d.writes, (counts{4, 4, 2}));
}
