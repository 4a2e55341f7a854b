// Copies between L1 and L2 that fail: their pages are lost, the rest is served as before.

#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

using namespace hicache;
using namespace hicache::test;

namespace {

constexpr auto page_size = uint64_t{4};

tree_options options(write_policy write = write_policy::write_through, bool storage = false) {
  return {.page_size = page_size,
          .l1_pages = 16,
          .l2_pages = 16,
          .layers = 2,
          .write = write,
          .load_back_threshold_tokens = 4,
          .storage_attached = storage};
}

const auto A = range(1, 17);
const auto longer = range(1, 25);
const auto B = range(101, 117);

using hit = tree_driver::hit;

void finish(tree_driver& d) {
  d.run_all();
  d.poll();
}

void put_in_l2(tree_driver& d, const tokens_t& tokens) {
  d.insert(tokens);
  d.finish();
  d.evict(tokens.size());
}

std::vector<request_id> failed(const tree_driver& d) {
  return {d.tree.failed().begin(), d.tree.failed().end()};
}

/// The newest load that ran is a fact, and failed.
void fail_load(tree_driver& d) {
  d.run_loads(1);
  auto facts = d.offer();
  facts.load_failed = true;
  d.apply(facts);
}

void fail_write(tree_driver& d) {
  d.run_writes(1);
  auto facts = d.offer();
  facts.write_failed = true;
  d.apply(facts);
}

} // namespace

TEST(FailedCopy, PagesWhoseWriteFailedAreInL1Alone) {
  auto d = tree_driver{options()};
  d.insert(A);
  fail_write(d);
  EXPECT_EQ(d.l2_free(), 16 * page_size);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
  EXPECT_EQ(d.evict_l2(16), 0);
}

TEST(FailedCopy, AWriteThatFailedIsTriedAgainWithTheNextUse) {
  auto d = tree_driver{options()};
  d.insert(A);
  fail_write(d);
  d.insert(A);
  finish(d);
  EXPECT_EQ(d.evict(16), 16);
  EXPECT_EQ(d.match(A), (hit{0, 16}));
}

TEST(FailedCopy, OneFailedWriteLeavesTheOthersAlone) {
  auto d = tree_driver{options()};
  d.insert(A);
  d.insert(B);
  fail_write(d);
  finish(d);
  // What has a copy goes at once, the other is written first.
  EXPECT_EQ(d.evict(32), 16);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
  EXPECT_EQ(d.match(B), (hit{0, 16}));
}

TEST(FailedCopy, PagesThatCannotBeWrittenBackMakeRoomAllTheSame) {
  auto d = tree_driver{options(write_policy::write_back)};
  d.insert(A);
  EXPECT_EQ(d.evict(16), 0);
  fail_write(d);
  EXPECT_EQ(d.tree.stats().l1_free, 16u);
  EXPECT_EQ(d.l2_free(), 16 * page_size);
  EXPECT_EQ(d.match(A), (hit{0, 0}));
}

TEST(FailedCopy, PagesWhoseLoadFailedAreNotServed) {
  auto d = tree_driver{options()};
  put_in_l2(d, A);
  const auto request = d.open(A);
  EXPECT_EQ(d.load(request).loading_tokens, 16u);
  fail_load(d);
  EXPECT_EQ(failed(d), std::vector{request});
  EXPECT_EQ(d.match(A), (hit{0, 0}));
  // Its pages are its own until it is released: kernels may still use them.
  EXPECT_EQ(d.tree.stats().l1_free, 12u);
  d.close(request);
  EXPECT_EQ(d.tree.stats().l1_free, 16u);
  EXPECT_EQ(d.l2_free(), 16 * page_size);
  EXPECT_EQ(d.insert(A), 0u);
}

TEST(FailedCopy, WhatIsBeforeTheLoadIsServedAsBefore) {
  auto d = tree_driver{options()};
  put_in_l2(d, longer);
  d.insert(A);
  d.finish();
  const auto request = d.open(longer);
  EXPECT_EQ(d.matched(request).l1_tokens, 16u);
  EXPECT_EQ(d.load(request).loading_tokens, 8u);
  fail_load(d);
  EXPECT_EQ(failed(d), std::vector{request});
  d.close(request);
  EXPECT_EQ(d.match(longer), (hit{16, 0}));
}

TEST(FailedCopy, WhatWasComputedFromAFailedLoadGoesWithIt) {
  auto d = tree_driver{options(write_policy::write_through, true)};
  put_in_l2(d, A);
  const auto stored = d.store.size();
  const auto request = d.open(longer);
  d.load(request);
  ASSERT_TRUE(d.compute(request, longer));
  d.insert_open(request, longer);
  const auto reader = d.open(longer);
  d.close(request);
  // The write of what was computed is a fact before the load is.
  d.run_writes();
  d.run_backups();
  d.poll();
  d.run_backups();
  EXPECT_EQ(d.store.size(), stored) << "bytes that may be wrong went to L3";
  fail_load(d);
  EXPECT_EQ(failed(d), std::vector{reader});
  EXPECT_EQ(d.match(longer), (hit{0, 0}));
  d.close(reader);
  EXPECT_EQ(d.tree.stats().l1_free, 16u);
  EXPECT_EQ(d.l2_free(), 16 * page_size);
}

TEST(FailedCopy, WhatWasComputedFromALoadGoesToL3OnceTheLoadIsAFact) {
  auto d = tree_driver{options(write_policy::write_through, true)};
  put_in_l2(d, A);
  const auto request = d.open(longer);
  d.load(request);
  ASSERT_TRUE(d.compute(request, longer));
  d.insert_open(request, longer);
  d.close(request);
  d.run_writes();
  d.poll();
  d.run_loads();
  d.poll();
  d.finish();
  EXPECT_EQ(d.store.size(), 6u);
}

TEST(FailedCopy, RequestsThatShareTheLoadFailTogether) {
  auto d = tree_driver{options()};
  put_in_l2(d, A);
  const auto first = d.open(A);
  d.load(first);
  const auto second = d.open(longer);
  EXPECT_EQ(d.matched(second).l1_tokens, 16u);
  const auto other = d.open(B);
  fail_load(d);
  EXPECT_EQ(failed(d), (std::vector{first, second}));
  d.close(first);
  EXPECT_EQ(d.tree.stats().l1_free, 12u);
  d.close(second);
  EXPECT_EQ(d.tree.stats().l1_free, 16u);
  d.close(other);
}

TEST(FailedCopy, ARequestThatHasNotLoadedOnlyLosesItsHostPart) {
  auto d = tree_driver{options()};
  put_in_l2(d, A);
  const auto waiting = d.open(A);
  const auto loading = d.open(A);
  d.load(loading);
  fail_load(d);
  EXPECT_EQ(failed(d), std::vector{loading});
  ASSERT_TRUE(d.compute(waiting, A));
  EXPECT_EQ(d.insert_open(waiting, A).duplicate_tokens, 0u);
  d.close(loading);
  d.close(waiting);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
}

TEST(FailedCopy, NothingThatAFailedRequestInsertsIsTaken) {
  auto d = tree_driver{options()};
  put_in_l2(d, A);
  const auto request = d.open(longer);
  d.load(request);
  ASSERT_TRUE(d.compute(request, longer));
  fail_load(d);
  const auto inserted = d.tree.insert({request, std::make_shared<const tokens_t>(longer)});
  ASSERT_TRUE(inserted);
  EXPECT_EQ(inserted->node, 0u);
  EXPECT_EQ(inserted->l1_pages->size(), 6u);
  const auto told = d.tree.provenance(request);
  EXPECT_EQ(told->l2_tokens, 0u);
  EXPECT_EQ(told->computed_tokens, 24u);
  EXPECT_EQ(told->unserved_tokens, 16u);
  EXPECT_EQ(told->why, miss_reason::copy_failed);
  d.close(request);
  EXPECT_EQ(d.match(longer), (hit{0, 0}));
}

TEST(FailedCopy, PinsLocksAndReferencesOfLostPagesEnd) {
  auto settings = options();
  settings.pin_budget_pages = 16;
  auto d = tree_driver{settings};
  put_in_l2(d, A);
  ASSERT_TRUE(d.tree.pin({{}, std::make_shared<const tokens_t>(A), std::chrono::hours{1}}));
  const auto request = d.open(A);
  const auto node = d.matched(request).node;
  const auto reference = d.tree.refer(node);
  ASSERT_TRUE(reference);
  d.load(request);
  ASSERT_TRUE(d.tree.lock(node));
  fail_load(d);
  EXPECT_EQ(d.tree.stats().pinned, 0u);
  EXPECT_EQ(d.tree.lock(node).error().code, ec::unknown_id);
  d.close(request);
  EXPECT_EQ(d.tree.stats().l1_free, 12u);
  EXPECT_TRUE(d.tree.unlock(node));
  EXPECT_EQ(d.tree.stats().l1_free, 16u);
  d.tree.drop_reference(*reference);
  d.settle();
}

TEST(FailedCopy, ALoadBelowAFailedOneFailsToo) {
  auto d = tree_driver{options()};
  put_in_l2(d, longer);
  const auto first = d.open(A);
  d.load(first);
  const auto second = d.open(longer);
  EXPECT_EQ(d.load(second).loading_tokens, 8u);
  d.close(second);
  fail_load(d);
  // Its copy still writes to these pages.
  EXPECT_EQ(d.tree.stats().l1_free, 10u);
  d.close(first);
  finish(d);
  EXPECT_EQ(d.tree.stats().l1_free, 16u);
  EXPECT_EQ(d.match(longer), (hit{0, 0}));
}

TEST(FailedCopy, StopsServingUntilAClear) {
  auto d = tree_driver{options()};
  d.insert(A);
  d.finish();
  d.tree.stop_serving();
  EXPECT_EQ(d.match(A), (hit{0, 0}));
  ASSERT_TRUE(d.tree.clear());
  d.settle();
  d.insert(A);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
}
