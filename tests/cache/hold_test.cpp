// What keeps pages without a request: locks by handle and pins; and the operations on nodes.
// Page 4.

#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

using namespace hicache;
using namespace hicache::test;
using namespace std::chrono_literals;

namespace {

const auto A = range(1, 17);
const auto B = range(101, 117);
const auto C = range(201, 217);

using hit = tree_driver::hit;

tree_options tiers(uint32_t l1_tokens = 64, uint32_t l2_tokens = 64) {
  return {
    .page_size = 4, .l1_pages = l1_tokens / 4, .l2_pages = l2_tokens / 4, .pin_budget_pages = 8};
}

template <class T>
ec code(const result<T>& outcome) {
  return outcome ? ec::none : outcome.error().code;
}

/// Lets time pass: pins end at steps.
void pass_time(tree_driver& d, std::chrono::nanoseconds time) {
  d.poll();
  d.now_ns += time.count();
  d.poll();
}

} // namespace

// -- handles ------------------------------------------------------------------

// Case T21.
TEST(Handles, LocksCount) {
  auto d = tree_driver{tiers()};
  d.insert(A);
  const auto inner = d.last_insert.node;
  d.insert(A + B);
  d.finish();
  const auto node = d.last_insert.node;
  EXPECT_EQ(d.tree.lock(node)->protected_tokens, 32);
  EXPECT_EQ(d.tree.lock(node)->protected_tokens, 32);
  EXPECT_EQ(d.evict(32), 0);
  EXPECT_EQ(d.tree.unlock(node)->evictable_tokens, 0);
  EXPECT_EQ(d.evict(32), 0);
  EXPECT_EQ(d.tree.lock(inner)->protected_tokens, 32);
  EXPECT_EQ(d.tree.unlock(node)->evictable_tokens, 16);
  EXPECT_EQ(d.tree.unlock(inner)->evictable_tokens, 32);
  EXPECT_EQ(d.evict(32), 32);
  EXPECT_EQ(code(d.tree.unlock(node)), ec::unknown_id);
}

TEST(Handles, NameTheSamePrefixAfterSplits) {
  auto d = tree_driver{tiers()};
  d.insert(A);
  const auto node = d.last_insert.node;
  d.match(range(1, 9));
  d.insert(range(1, 9) + B);
  d.finish();
  ASSERT_TRUE(d.tree.lock(node));
  EXPECT_EQ(d.evict(64), 16);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
  ASSERT_TRUE(d.tree.unlock(node));
}

TEST(Handles, FailCleanlyWhenTheNodeIsGone) {
  auto d = tree_driver{tiers(64, 0)};
  d.insert(A);
  const auto node = d.last_insert.node;
  d.evict(16);
  const auto digest = d.tree.digest();
  EXPECT_EQ(code(d.tree.lock(node)), ec::unknown_id);
  EXPECT_EQ(code(d.tree.backup(node)), ec::unknown_id);
  EXPECT_EQ(code(d.tree.load_node({node})), ec::unknown_id);
  EXPECT_EQ(code(d.tree.refer(node)), ec::unknown_id);
  EXPECT_EQ(d.tree.digest(), digest);
  d.insert(A);
  EXPECT_EQ(code(d.tree.lock(node)), ec::unknown_id) << "a handle never comes back";
}

TEST(Handles, LockProtectsTheHostPartToo) {
  auto d = tree_driver{tiers(64, 32)};
  d.insert(A);
  d.finish();
  const auto node = d.last_insert.node;
  d.evict(16);
  ASSERT_TRUE(d.tree.lock(node));
  EXPECT_EQ(d.evict_l2(16), 0);
  EXPECT_EQ(d.load_back(A), 16);
  d.finish();
  ASSERT_TRUE(d.tree.unlock(node));
  d.tree.check_invariants();
  EXPECT_EQ(d.evict(16), 16);
  EXPECT_EQ(d.evict_l2(16), 16);
}

TEST(Handles, BackupIsAllOrNothing) {
  auto options = tiers(64, 24);
  options.write = write_policy::write_through_selective;
  auto d = tree_driver{options};
  d.insert(A);
  d.insert(A + B);
  const auto node = d.last_insert.node;
  d.finish();
  EXPECT_EQ(d.l2_free(), 8) << "A was inserted twice";
  EXPECT_EQ(code(d.tree.backup(node)), ec::out_of_host_pages);
  EXPECT_EQ(d.l2_free(), 8);
  EXPECT_EQ(d.match(A + B), (hit{32, 0}));
}

TEST(Handles, BackupAndLoadOfANode) {
  auto options = tiers();
  options.write = write_policy::write_back;
  auto d = tree_driver{options};
  d.insert(A);
  d.insert(A + B);
  const auto node = d.last_insert.node;
  EXPECT_EQ(d.tree.backup(node)->written_tokens, 32);
  d.settle();
  d.finish();
  EXPECT_EQ(d.tree.backup(node)->written_tokens, 0);
  EXPECT_EQ(d.evict(32), 32);
  EXPECT_EQ(d.tree.load_node({node, 31})->loading_tokens, 0);
  EXPECT_EQ(d.tree.load_node({node, 32})->loading_tokens, 32);
  d.settle();
  d.finish();
  EXPECT_EQ(d.match(A + B), (hit{32, 0}));
  EXPECT_EQ(d.writes, (std::vector<uint64_t>{8}));
  EXPECT_EQ(d.loads, (std::vector<uint64_t>{8}));
}

// Cases T11 and T12.
TEST(Handles, LoadOfANodeObeysThresholdAndQuota) {
  auto d = tree_driver{tiers()};
  d.insert(range(1, 9));
  const auto small = d.last_insert.node;
  d.insert(B);
  const auto large = d.last_insert.node;
  d.finish();
  d.evict(64);
  EXPECT_EQ(d.tree.load_node({small})->loading_tokens, 0);
  EXPECT_EQ(d.tree.load_node({large, 12})->loading_tokens, 0);
  EXPECT_EQ(d.tree.load_node({large, 16})->loading_tokens, 16);
  d.settle();
  d.finish();
}

TEST(Handles, QuotaBoundsTheLoadOfARequest) {
  auto d = tree_driver{tiers()};
  d.insert(A);
  d.finish();
  d.evict(16);
  const auto request = d.open(A);
  EXPECT_EQ(d.tree.load_back({request, 12})->loading_tokens, 0);
  EXPECT_EQ(d.tree.load_back({request, 16})->loading_tokens, 16);
  d.settle();
  d.finish();
  d.close(request);
}

TEST(Handles, ClearForgetsEverythingAndWaitsForNobody) {
  auto d = tree_driver{tiers()};
  d.insert(A);
  EXPECT_EQ(code(d.tree.clear()), ec::invalid_argument) << "a copy is in flight";
  d.finish();
  const auto request = d.open(A);
  EXPECT_EQ(code(d.tree.clear()), ec::invalid_argument) << "a request is open";
  d.close(request);
  ASSERT_TRUE(d.tree.lock(d.last_insert.node));
  EXPECT_EQ(code(d.tree.clear()), ec::invalid_argument) << "a node is locked";
  ASSERT_TRUE(d.tree.unlock(d.last_insert.node));
  ASSERT_TRUE(d.tree.pin({{}, share(A), 1s}));
  ASSERT_TRUE(d.tree.refer(d.last_insert.node));
  ASSERT_TRUE(d.tree.clear());
  d.settle();
  EXPECT_EQ(d.match(A), (hit{0, 0}));
  EXPECT_EQ(d.tree.stats().l1_free, 16);
  EXPECT_EQ(d.l2_free(), 64);
  EXPECT_EQ(d.tree.stats().pinned, 0);
  EXPECT_EQ(d.insert(A), 0);
}

// -- pins ---------------------------------------------------------------------

TEST(Pins, KeepPagesUntilTheirTimeIsOver) {
  auto d = tree_driver{tiers(64, 0)};
  d.insert(A);
  EXPECT_EQ(d.tree.pin({{}, share(A), 2s})->tokens, 16);
  EXPECT_EQ(d.tree.stats().pinned, 4);
  EXPECT_EQ(d.evict(16), 0);
  pass_time(d, 1999ms);
  EXPECT_EQ(d.evict(16), 0);
  pass_time(d, 1ms);
  EXPECT_EQ(d.tree.stats().pinned, 0);
  EXPECT_EQ(d.evict(16), 16);
}

TEST(Pins, PageMayLeaveTheDeviceIfTheHostHasIt) {
  auto d = tree_driver{tiers(64, 16)};
  d.insert(A);
  EXPECT_EQ(d.tree.pin({{}, share(A), 1s})->tokens, 16);
  EXPECT_EQ(d.evict(16), 0) << "the copy is not a fact yet";
  d.finish();
  EXPECT_EQ(d.evict(16), 16);
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  EXPECT_EQ(d.evict_l2(16), 0);
  d.insert(B);
  d.finish();
  EXPECT_EQ(d.match(A), (hit{0, 16})) << "a backup must not take the room of a pinned page";
  pass_time(d, 1s);
  EXPECT_EQ(d.evict_l2(16), 16);
}

TEST(Pins, BudgetOfATenantCountsPagesOnce) {
  auto d = tree_driver{tiers()};
  d.insert(A);
  d.insert(A + B);
  d.insert(A + C);
  d.finish();
  const auto tenant = cache_namespace{"", "tenant"};
  d.insert(C, tenant);
  d.finish();
  EXPECT_EQ(d.tree.pin({{}, share(A), 9s})->tokens, 16);
  EXPECT_EQ(d.tree.pin({{}, share(A + B), 9s})->tokens, 32);
  EXPECT_EQ(d.tree.stats().pinned, 8);
  const auto digest = d.tree.digest();
  EXPECT_EQ(code(d.tree.pin({{}, share(A + C), 9s})), ec::limit_reached);
  EXPECT_EQ(d.tree.digest(), digest);
  EXPECT_EQ(d.tree.pin({tenant, share(C), 9s})->tokens, 16) << "its own budget";
  EXPECT_EQ(d.tree.unpin({{}, share(A + B)})->tokens, 0);
  EXPECT_EQ(d.tree.pin({{}, share(A + C), 9s})->tokens, 32);
  d.settle();
}

TEST(Pins, UnpinEndsWhatLiesWithinTheTokens) {
  auto d = tree_driver{tiers()};
  d.insert(A + B);
  d.finish();
  EXPECT_EQ(d.tree.pin({{}, share(A), 9s})->tokens, 16);
  EXPECT_EQ(d.tree.pin({{}, share(A + B), 9s})->tokens, 32);
  EXPECT_EQ(d.tree.unpin({{}, share(A)})->tokens, 16) << "the longer pin still covers these";
  d.settle();
  EXPECT_EQ(d.tree.unpin({{}, share(A + B + C)})->tokens, 0);
  d.settle();
  EXPECT_EQ(d.tree.stats().pinned, 0);
}

TEST(Pins, TimeBeginsWithTheNextStep) {
  auto d = tree_driver{tiers(64, 0)};
  d.insert(A);
  d.now_ns = 5'000'000'000;
  EXPECT_FALSE(d.tree.in_flight());
  ASSERT_TRUE(d.tree.pin({{}, share(A), 2s}));
  EXPECT_TRUE(d.tree.in_flight()) << "a step must tell the time";
  d.poll();
  EXPECT_FALSE(d.tree.in_flight());
  d.now_ns = 6'999'999'999;
  d.poll();
  EXPECT_EQ(d.evict(16), 0);
  d.now_ns = 7'000'000'000;
  d.poll();
  EXPECT_EQ(d.evict(16), 16);
}

TEST(Pins, PinningAgainProlongs) {
  auto d = tree_driver{tiers(64, 0)};
  d.insert(A);
  ASSERT_TRUE(d.tree.pin({{}, share(A), 1s}));
  ASSERT_TRUE(d.tree.pin({{}, share(A), 3s}));
  ASSERT_TRUE(d.tree.pin({{}, share(A), 2s}));
  pass_time(d, 2999ms);
  EXPECT_EQ(d.evict(16), 0);
  pass_time(d, 1ms);
  EXPECT_EQ(d.evict(16), 16);
}

TEST(Pins, HitsBeginTheirTimeAnewIfAsked) {
  for (const auto refreshes : {false, true}) {
    auto options = tiers(64, 0);
    options.pin_refresh = refreshes;
    auto d = tree_driver{options};
    d.insert(A);
    ASSERT_TRUE(d.tree.pin({{}, share(A), 2s}));
    pass_time(d, 1s);
    d.match(A + B);
    pass_time(d, 1s);
    d.match(range(1, 9)); // Not all that is pinned.
    pass_time(d, 999ms);
    EXPECT_EQ(d.evict(16), refreshes ? 0 : 16);
    pass_time(d, 1ms);
    EXPECT_EQ(d.evict(16), refreshes ? 16 : 0);
  }
}

TEST(Pins, SurviveSplits) {
  auto d = tree_driver{tiers(64, 0)};
  d.insert(A);
  ASSERT_TRUE(d.tree.pin({{}, share(A), 1s}));
  d.match(range(1, 9));
  ASSERT_TRUE(d.tree.pin({{}, share(range(1, 9)), 2s}));
  d.settle();
  EXPECT_EQ(d.evict(16), 0);
  pass_time(d, 1s);
  EXPECT_EQ(d.evict(16), 8);
  EXPECT_EQ(d.match(A), (hit{8, 0}));
}

TEST(Pins, NeedTokensAndATime) {
  auto d = tree_driver{tiers()};
  EXPECT_EQ(d.tree.pin({{}, share(A), 1s})->tokens, 0) << "nothing is cached";
  EXPECT_EQ(code(d.tree.pin({{}, share(A), 0s})), ec::invalid_argument);
  EXPECT_EQ(code(d.tree.pin({{}, nullptr, 1s})), ec::invalid_argument);
  EXPECT_EQ(d.tree.unpin({{}, share(A)})->tokens, 0);
}

TEST(Pins, RequestRetainsWhatItInserts) {
  auto d = tree_driver{tiers(64, 0)};
  d.insert(A, {}, {.retain = 1s});
  EXPECT_EQ(d.last_insert.pinned_tokens, 16);
  d.insert(B + C, {}, {.retain = 1s});
  EXPECT_EQ(d.last_insert.pinned_tokens, 0) << "the budget is 32 tokens";
  EXPECT_EQ(d.evict(64), 32);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
  pass_time(d, 1s);
  EXPECT_EQ(d.evict(64), 16);
}

TEST(Pins, LogicalTimeNeverGoesBack) {
  auto d = tree_driver{tiers(64, 0)};
  pass_time(d, 10s);
  d.insert(A);
  pass_time(d, -9s);
  ASSERT_TRUE(d.tree.pin({{}, share(A), 2s}));
  d.poll();
  d.now_ns = 11'000'000'000;
  d.poll();
  EXPECT_EQ(d.evict(16), 0) << "11 s have passed, the pin ends at 12 s";
  pass_time(d, 1s);
  EXPECT_EQ(d.evict(16), 16);
}
