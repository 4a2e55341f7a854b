// Streaming sessions over a tree with L2 and L3. Page 4, 16 pages on device and host.

#include "tests/cache/session_engine.hpp"
#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

using namespace hicache;
using namespace hicache::test;

namespace {

const auto A = range(1, 17);
const auto B = range(101, 117);
const auto first_turn = range(1, 20);

template <class T>
ec code(const result<T>& outcome) {
  return outcome ? ec::none : outcome.error().code;
}

tree_options tree() {
  return {.page_size = 4, .l1_pages = 16, .l2_pages = 16};
}

} // namespace

TEST(SessionTiers, ClearIsRefusedWhileANodeIsLockedOrACopyInFlight) {
  auto e = session_engine{tree()};
  const auto session = e.open_session(7, true);
  e.run(first_turn, session);
  const auto refused = [&] {
    const auto digest = e.cache.digest();
    EXPECT_EQ(code(e.cache.clear()), ec::invalid_argument);
    EXPECT_EQ(e.cache.digest(), digest);
  };
  const auto node = e.cache.nodes().front().id;
  EXPECT_TRUE(e.cache.in_flight());
  refused();
  e.finish();
  ASSERT_TRUE(e.cache.lock(node));
  refused();
  ASSERT_TRUE(e.cache.unlock(node));
  EXPECT_EQ(code(e.cache.unlock(node)), ec::unknown_id);
  EXPECT_TRUE(e.cache.clear());
}

TEST(SessionTiers, ALoadThatIsStillRunningIsWaitedFor) {
  auto e = session_engine{tree()};
  e.run(A);
  e.finish();
  e.cache.evict({cache_tier::l1, 16});
  const auto session = e.open_session(7, true);
  EXPECT_EQ(e.match(1, first_turn, session).l2_tokens, 16);
  const auto progress = e.load(1).progress;
  ASSERT_NE(progress, nullptr);
  ASSERT_TRUE(e.compute(1, first_turn));
  e.insert(1, first_turn);
  e.release(1);
  e.match(2, first_turn + B, session);
  const auto loaded = e.cache.load_back({2});
  EXPECT_EQ(loaded->l1_tokens, 19);
  EXPECT_EQ(loaded->loading_tokens, 0);
  EXPECT_EQ(loaded->progress, progress);
  e.finish();
  EXPECT_EQ(e.cache.load_back({2})->progress, nullptr);
}

TEST(SessionTiers, AHostPartThatAnInsertCoveredCountsNoMore) {
  auto e = session_engine{tree()};
  e.run(A);
  e.finish();
  e.cache.evict({cache_tier::l1, 16});
  const auto session = e.open_session(7, true);
  EXPECT_EQ(e.match(1, range(1, 18), session).l2_tokens, 16);
  ASSERT_TRUE(e.compute(1, range(1, 18)));
  e.insert(1, range(1, 18));
  e.release(1);
  EXPECT_EQ(e.match(2, range(1, 18) + B, session).l1_tokens, 17);
  e.insert(2, A);
  e.release(2);
  EXPECT_EQ(e.cache.stats().requests_open, 1);
}

TEST(SessionTiers, NothingIsKeptWhileAHostPartIsLeft) {
  auto e = session_engine{tree()};
  e.run(A);
  e.finish();
  e.cache.evict({cache_tier::l1, 16});
  const auto session = e.open_session(7, true);
  EXPECT_EQ(e.match(1, A + B, session).l2_tokens, 16);
  ASSERT_TRUE(e.compute(1, range(1, 9)));
  e.insert(1, range(1, 9));
  e.release(1);
  EXPECT_EQ(e.cache.stats().requests_open, 0);
  const auto prompt = range(1, 9) + B;
  EXPECT_EQ(e.match(2, prompt, session).l1_tokens, 8);
  ASSERT_TRUE(e.compute(2, prompt));
  EXPECT_TRUE(e.cache.insert({.request = 2, .tokens = share(prompt)}));
}

namespace {

/// Has run a first turn of session 7 up to a prefetch of 16 tokens.
struct prefetching_engine : session_engine {
  prefetching_engine() : session_engine(options()) {
    match(5, first_turn, open_session(7, true));
    EXPECT_EQ(cache.prefetch(5)->tokens, 16);
  }

  static tree_options options() {
    auto result = tree();
    result.prefetch_reserve_pages = 8;
    result.prefetch.threshold_tokens = 4;
    result.storage_attached = true;
    return result;
  }
};

constexpr auto prefetching_session = session_ref{7, 1};

} // namespace

TEST(SessionTiers, ReadyRequestsHaveTheNumbersOfTheEngine) {
  auto e = prefetching_engine{};
  EXPECT_FALSE(e.cache.schedule(5)->ready);
  const auto ready = e.step(2);
  ASSERT_EQ(ready.size(), 1);
  EXPECT_EQ(ready[0].request, 5);
  EXPECT_EQ(ready[0].fetched_tokens, 8);
  EXPECT_EQ(ready[0].l2_tokens, 8);
  ASSERT_TRUE(e.compute(5, first_turn));
  e.insert(5, first_turn);
  e.release(5);
  EXPECT_EQ(e.match(6, first_turn + B, prefetching_session).l1_tokens, 19);
}

TEST(SessionTiers, WhatAPrefetchBroughtIsAHostPartToo) {
  auto e = prefetching_engine{};
  EXPECT_FALSE(e.cache.schedule(5)->ready);
  e.step(2);
  ASSERT_TRUE(e.compute(5, range(1, 6)));
  e.insert(5, range(1, 6));
  e.release(5);
  EXPECT_EQ(e.cache.stats().requests_open, 0);
}

TEST(SessionTiers, ATurnThatEndsBeforeItsPrefetchAddsNothing) {
  auto e = prefetching_engine{};
  ASSERT_TRUE(e.compute(5, first_turn));
  e.insert(5, first_turn);
  e.release(5);
  EXPECT_EQ(e.cache.stats().requests_open, 0);
  EXPECT_EQ(e.terminates, 1);
  EXPECT_EQ(e.match(6, first_turn + B, prefetching_session).l1_tokens, 16);
  EXPECT_TRUE(e.step(1).empty());
  e.cache.check_invariants();
}

TEST(SessionTiers, WhatIsInsertedBeforeThePrefetchEndsDoesNotCount) {
  auto e = prefetching_engine{};
  EXPECT_FALSE(e.cache.schedule(5)->ready);
  ASSERT_TRUE(e.compute(5, first_turn));
  e.insert(5, first_turn);
  EXPECT_EQ(e.step(1).size(), 1);
  e.release(5);
  EXPECT_EQ(e.cache.stats().requests_open, 0);
  EXPECT_EQ(e.match(6, first_turn + B, prefetching_session).l1_tokens, 16);
}
