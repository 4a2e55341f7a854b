// When pages are written to L2, and who makes room for them there. Page 4.

#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

using namespace hicache;
using namespace hicache::test;

namespace {

const auto A = range(1, 17);
const auto B = range(101, 117);
const auto C = range(201, 217);

using hit = tree_driver::hit;
using counts = std::vector<uint64_t>;

tree_options tiers(write_policy write, uint32_t l1_tokens = 64, uint32_t l2_tokens = 64) {
  return {.page_size = 4, .l1_pages = l1_tokens / 4, .l2_pages = l2_tokens / 4, .write = write};
}

/// Evicts like a caller who waits for what is being written.
uint64_t evict_and_finish(tree_driver& d, uint64_t tokens) {
  const auto before = d.tree.stats().evicted_l1;
  d.evict(tokens);
  d.finish();
  return (d.tree.stats().evicted_l1 - before) * 4;
}

} // namespace

// -- write-through ------------------------------------------------------------

TEST(WriteThrough, PartsOfAPrefillAreWrittenWithTheLastOne) {
  auto d = tree_driver{tiers(write_policy::write_through)};
  const auto request = d.open(A + B);
  ASSERT_TRUE(d.compute(request, A + B));
  d.insert_open({.request = request, .tokens = share(A), .chunked = true});
  d.insert_open({.request = request, .tokens = share(A + range(101, 105)), .chunked = true});
  EXPECT_FALSE(d.tree.in_flight());
  d.insert_open({.request = request, .tokens = share(A + B)});
  EXPECT_EQ(d.writes, counts{8}) << "all parts, in one copy";
  d.finish();
  d.close(request);
  EXPECT_EQ(d.evict(32), 32);
  EXPECT_EQ(d.match(A + B), (hit{0, 32}));
}

// Case T8 and what follows from it: copies of what is on the device are worth least.
TEST(WriteThrough, CopiesOfDevicePagesMakeRoomFirst) {
  auto d = tree_driver{tiers(write_policy::write_through, 64, 32)};
  d.insert(A);
  d.finish();
  d.evict(16);
  d.insert(B);
  d.finish();
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  d.insert(C);
  d.finish();
  EXPECT_EQ(d.writes, (counts{4, 4})) << "no copy makes room for another one";
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  EXPECT_EQ(evict_and_finish(d, 32), 32);
  EXPECT_EQ(d.match(B), (hit{0, 0})) << "used longest ago of all three";
  EXPECT_EQ(d.match(C), (hit{0, 16}));
}

// Defect D14 of SGLang: it destroyed A's copy and had no room for B afterwards all the same.
TEST(WriteThrough, NothingIsEvictedForACopyThatCannotFit) {
  auto d = tree_driver{tiers(write_policy::write_through, 64, 24)};
  d.insert(A);
  d.finish();
  d.evict(16);
  d.insert(B + C);
  EXPECT_FALSE(d.tree.in_flight());
  EXPECT_EQ(d.match(A), (hit{0, 16}));
}

// Case T4.
TEST(WriteThroughSelective, WritesWithTheSecondInsert) {
  auto d = tree_driver{tiers(write_policy::write_through_selective)};
  EXPECT_EQ(d.insert(A), 0);
  d.match(A);
  EXPECT_EQ(d.l2_free(), 64);
  EXPECT_EQ(d.insert(A), 16);
  EXPECT_EQ(d.l2_free(), 48);
  EXPECT_EQ(d.insert(A), 16);
  d.finish();
  EXPECT_EQ(d.l2_free(), 48);
  EXPECT_EQ(d.writes, counts{4});
}

TEST(WriteThroughSelective, WritesTheSharedPartOnly) {
  auto d = tree_driver{tiers(write_policy::write_through_selective)};
  d.insert(A + B);
  d.insert(A + C);
  d.finish();
  EXPECT_EQ(d.writes, counts{4});
  d.evict(64);
  EXPECT_EQ(d.match(A + B), (hit{0, 16}));
}

TEST(WriteThroughSelective, PartsOfAPrefillAreNoHits) {
  auto d = tree_driver{tiers(write_policy::write_through_selective)};
  const auto request = d.open(A);
  ASSERT_TRUE(d.compute(request, A));
  d.insert_open({.request = request, .tokens = share(range(1, 9)), .chunked = true});
  d.insert_open({.request = request, .tokens = share(A), .chunked = true});
  d.insert_open({.request = request, .tokens = share(A)});
  d.close(request);
  EXPECT_FALSE(d.tree.in_flight());
}

// -- write-back ---------------------------------------------------------------

// Case W1.
TEST(WriteBack, WritesWhatLeavesTheDevice) {
  auto d = tree_driver{tiers(write_policy::write_back, 64, 16)};
  d.insert(A);
  EXPECT_FALSE(d.tree.in_flight());
  const auto asked = d.tree.evict({cache_tier::l1, 16});
  EXPECT_EQ(asked->tokens, 0);
  EXPECT_EQ(asked->writing_tokens, 16);
  d.settle();
  d.finish();
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  EXPECT_EQ(d.l2_free(), 0);
  d.insert(B);
  EXPECT_EQ(evict_and_finish(d, 16), 16);
  EXPECT_EQ(d.match(A), (hit{0, 0}));
  EXPECT_EQ(d.match(B), (hit{0, 16}));
}

// Case W2.
TEST(WriteBack, DropsWhatTheHostCannotTake) {
  auto d = tree_driver{tiers(write_policy::write_back, 64, 8)};
  d.insert(A);
  EXPECT_EQ(d.evict(16), 8) << "the end";
  d.finish();
  EXPECT_EQ(d.match(A), (hit{0, 8}));
  EXPECT_EQ(d.l2_free(), 0);
}

TEST(WriteBack, WritesOnlyAsMuchOfTheTailAsIsNeeded) {
  auto d = tree_driver{tiers(write_policy::write_back)};
  d.insert(A);
  EXPECT_EQ(evict_and_finish(d, 5), 8);
  EXPECT_EQ(d.match(A), (hit{8, 8}));
  EXPECT_EQ(d.writes, counts{2});
}

TEST(WriteBack, AllocationSucceedsAfterAStep) {
  auto d = tree_driver{tiers(write_policy::write_back, 16, 16)};
  d.insert(A);
  const auto request = d.open(B);
  EXPECT_FALSE(d.compute(request, B));
  EXPECT_FALSE(d.compute(request, B)) << "asking again begins nothing new";
  EXPECT_EQ(d.writes, counts{4});
  d.finish();
  EXPECT_TRUE(d.compute(request, B));
  d.close(request);
  EXPECT_EQ(d.match(A), (hit{0, 16}));
}

TEST(WriteBack, AllocationThatCannotSucceedWritesNothing) {
  auto d = tree_driver{tiers(write_policy::write_back, 16, 16)};
  d.insert(A);
  const auto request = d.open(B + C);
  EXPECT_FALSE(d.compute(request, B + C));
  EXPECT_FALSE(d.tree.in_flight());
  d.close(request);
}

TEST(WriteBack, PageThatIsUsedAgainStays) {
  auto d = tree_driver{tiers(write_policy::write_back)};
  d.insert(A);
  d.evict(16);
  const auto request = d.open(A);
  d.finish();
  EXPECT_EQ(d.match(A), (hit{16, 0}));
  d.close(request);
  EXPECT_EQ(d.evict(16), 16) << "L2 has it already";
  EXPECT_EQ(d.writes, counts{4});
}

TEST(WriteBack, LoadMayHaveToWaitForAWrite) {
  auto d = tree_driver{tiers(write_policy::write_back, 16, 32)};
  d.insert(A);
  evict_and_finish(d, 16);
  d.insert(B);
  const auto request = d.open(A);
  const auto refused = d.tree.load_back({request});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ec::out_of_device_pages);
  d.settle();
  d.finish();
  EXPECT_EQ(d.load(request).loading_tokens, 16);
  d.finish();
  d.close(request);
  EXPECT_EQ(d.match(B), (hit{0, 16}));
}

// Case W4.
TEST(WriteBack, ChildGoesBeforeItsParent) {
  auto d = tree_driver{tiers(write_policy::write_back, 64, 4)};
  d.insert(range(1, 9));
  d.insert(range(1, 13));
  EXPECT_EQ(evict_and_finish(d, 4), 4);
  EXPECT_EQ(d.match(range(1, 13)), (hit{8, 4}));
  const auto request = d.open(range(1, 13));
  EXPECT_EQ(d.evict(8), 0) << "the child is in use, and would be lost with its parent";
  d.close(request);
  EXPECT_EQ(evict_and_finish(d, 8), 8);
  EXPECT_EQ(d.match(range(1, 13)), (hit{0, 4})) << "the child makes room for its parent";
  EXPECT_EQ(d.l2_free(), 0);
}

TEST(WriteBack, LeavingPagesSplitAndArePinned) {
  auto options = tiers(write_policy::write_back);
  options.pin_budget_pages = 4;
  auto d = tree_driver{options};
  d.insert(A);
  d.evict(16);
  d.match(range(1, 9));
  ASSERT_TRUE(d.tree.pin({{}, share(range(1, 5)), std::chrono::seconds{1}}));
  d.settle();
  d.finish();
  EXPECT_EQ(d.match(A), (hit{0, 16})) << "a pin keeps pages on one tier";
  EXPECT_EQ(d.evict_l2(16), 12);
}
