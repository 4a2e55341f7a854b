// Sessions, with and without shared prefixes. Page 4, 16 pages on the device, unless stated.

#include "base/limits.hpp"
#include "cache/prefix/prefix_cache.hpp"
#include "tests/cache/session_engine.hpp"
#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

using namespace hicache;
using namespace hicache::test;

namespace {

const auto A = range(1, 17);
const auto B = range(101, 117);
const auto first_turn = range(1, 20);

/// The highest bit: what engines may not use.
constexpr auto reserved = request_id{1} << 63;

template <class T>
ec code(const result<T>& outcome) {
  return outcome ? ec::none : outcome.error().code;
}

match_request ask(request_id request, const tokens_t& tokens, const session_ref& session = {}) {
  return {
    .request = request, .tokens = share(tokens), .limit = tokens.size() - 1, .session = session};
}

tree_options tree() {
  return {.page_size = 4, .l1_pages = 16};
}

/// True: prefixes are shared.
class StreamingSession : public testing::TestWithParam<bool> {
protected:
  StreamingSession() : e(options()) { session = e.open_session(7, true); }

  static tree_options options() {
    auto result = tree();
    result.share_prefixes = GetParam();
    return result;
  }

  /// What an ordinary match finds of so many tokens that are inserted.
  static uint64_t shared(uint64_t tokens) { return GetParam() ? tokens / 4 * 4 : 0; }

  session_engine e;
  session_ref session;
};

INSTANTIATE_TEST_SUITE_P(Caches, StreamingSession, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "Tree" : "Chunk"; });

} // namespace

// -- opening and closing --------------------------------------------------------

TEST(Sessions, GenerationsTellASessionFromAnEarlierOne) {
  auto e = session_engine{tree()};
  const auto first = e.open_session(7, true);
  EXPECT_EQ(code(e.cache.open_session({7, false})), ec::invalid_argument);
  EXPECT_EQ(e.cache.close_session({first})->generation, first.generation);
  EXPECT_EQ(code(e.cache.close_session({first})), ec::unknown_id);
  const auto second = e.open_session(7, true);
  EXPECT_NE(second.generation, first.generation);
  const auto digest = e.cache.digest();
  const auto stale = e.cache.match(ask(1, A, first));
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error(),
            (error{ec::unknown_id, "session 7, generation " + std::to_string(first.generation)
                                     + " is not open (any more)"}));
  EXPECT_EQ(code(e.cache.match(ask(1, A, {8, second.generation}))), ec::unknown_id);
  EXPECT_EQ(code(e.cache.close_session({first})), ec::unknown_id);
  EXPECT_EQ(e.cache.digest(), digest);
  EXPECT_TRUE(e.cache.match(ask(1, A, second)));
}

TEST(Sessions, AreBounded) {
  auto e = session_engine{tree()};
  for (auto i = session_id{1}; i <= limits::sessions_open; ++i)
    ASSERT_TRUE(e.cache.open_session({i, false}));
  EXPECT_EQ(code(e.cache.open_session({limits::sessions_open + 1})), ec::limit_reached);
  ASSERT_TRUE(e.cache.close_session({{1, 1}}));
  EXPECT_TRUE(e.cache.open_session({1}));
  e.cache.check_invariants();
}

TEST(Sessions, ZeroNamesNone) {
  auto e = session_engine{tree()};
  EXPECT_EQ(code(e.cache.open_session({0, false})), ec::invalid_argument);
  EXPECT_TRUE(e.cache.match(ask(1, A, {0, 5})));
}

TEST(Sessions, HaveOneRequestAtATime) {
  for (const auto streaming : {false, true}) {
    auto e = session_engine{tree()};
    const auto session = e.open_session(7, streaming);
    ASSERT_TRUE(e.cache.match(ask(1, A, session)));
    const auto digest = e.cache.digest();
    EXPECT_EQ(code(e.cache.match(ask(2, A, session))), ec::invalid_argument);
    EXPECT_EQ(code(e.cache.close_session({session})), ec::invalid_argument);
    EXPECT_EQ(e.cache.digest(), digest);
    ASSERT_TRUE(e.cache.release(1));
    EXPECT_TRUE(e.cache.match(ask(2, A, session)));
  }
}

TEST(Sessions, EqualOperationsGiveEqualDigests) {
  auto a = session_engine{tree()};
  auto b = session_engine{tree()};
  const auto both = [&](auto operation) {
    const auto before = a.cache.digest();
    operation(a);
    EXPECT_NE(a.cache.digest(), before);
    EXPECT_NE(a.cache.digest(), b.cache.digest());
    operation(b);
    EXPECT_EQ(a.cache.digest(), b.cache.digest());
  };
  both([](auto& e) { e.open_session(7, true); });
  both([](auto& e) { e.open_session(8, false); });
  both([](auto& e) { e.match(1, A, {7, 1}); });
  both([](auto& e) { e.match(2, A, {8, 2}); });
  both([](auto& e) { e.compute(1, A); });
  both([](auto& e) { e.insert(1, A); });
  both([](auto& e) { e.release(1); });
  both([](auto& e) { e.match(3, A + B, {7, 1}); });
  both([](auto& e) { e.release(2); });
  both([](auto& e) { ASSERT_TRUE(e.cache.close_session({{8, 2}})); });
}

// -- sessions that refer ----------------------------------------------------------

namespace {

tree_options single_token_pages() {
  return {.page_size = 1, .l1_pages = 32};
}

} // namespace

// Case N6.
TEST(ReferringSession, WhatItInsertedGoesLast) {
  auto e = session_engine{single_token_pages()};
  const auto session = e.open_session(1, false);
  e.run({1, 2, 3, 4}, session);
  e.run({7, 8, 9});
  EXPECT_EQ(e.cache.evict({cache_tier::l1, 3})->tokens, 3);
  EXPECT_EQ(e.cached({7, 8, 9}), 0);
  EXPECT_EQ(e.cached({1, 2, 3, 4}), 4);
  EXPECT_EQ(e.cache.evict({cache_tier::l1, 4})->tokens, 4) << "it is no lock";
}

TEST(ReferringSession, RefersToItsLastTurnOnly) {
  auto e = session_engine{single_token_pages()};
  const auto session = e.open_session(1, false);
  e.run({1, 2, 3, 4}, session);
  e.run({5, 6, 7, 8}, session);
  e.run({9, 10, 11, 12});
  e.cache.evict({cache_tier::l1, 4});
  EXPECT_EQ(e.cached({1, 2, 3, 4}), 0) << "the oldest that nobody refers to";
  e.cache.evict({cache_tier::l1, 4});
  EXPECT_EQ(e.cached({5, 6, 7, 8}), 4);
}

TEST(ReferringSession, ATurnWithoutAnInsertChangesNothing) {
  auto e = session_engine{single_token_pages()};
  const auto session = e.open_session(1, false);
  e.run({1, 2, 3, 4}, session);
  e.match(1, {5, 6}, session);
  e.release(1);
  e.run({9, 10, 11, 12});
  e.cache.evict({cache_tier::l1, 4});
  EXPECT_EQ(e.cached({1, 2, 3, 4}), 4);
}

TEST(ReferringSession, ClosingDropsTheReference) {
  auto e = session_engine{single_token_pages()};
  const auto session = e.open_session(1, false);
  e.run({1, 2, 3, 4}, session);
  e.run({7, 8, 9, 10});
  ASSERT_TRUE(e.cache.close_session({session}));
  e.cache.evict({cache_tier::l1, 4});
  EXPECT_EQ(e.cached({7, 8, 9, 10}), 4);
  EXPECT_EQ(e.cached({1, 2, 3, 4}), 0);
}

TEST(ReferringSession, KeepsNoRequestOpen) {
  auto e = session_engine{tree()};
  const auto session = e.open_session(1, false);
  e.run(first_turn, session);
  EXPECT_EQ(e.cache.stats().requests_open, 0);
  EXPECT_EQ(e.cached(first_turn), 16);
  e.cache.check_invariants();
}

TEST(ReferringSession, OverAChunkCacheThereIsNothingToReferTo) {
  auto options = tree();
  options.share_prefixes = false;
  auto e = session_engine{options};
  const auto session = e.open_session(1, false);
  e.run(first_turn, session);
  e.run(first_turn, session);
  EXPECT_EQ(e.cache.stats().l1_free, 16);
}

// -- sessions that stream: the next turn -----------------------------------------

TEST_P(StreamingSession, GoesOnAfterItsLastToken) {
  e.run(first_turn, session);
  const auto prompt = first_turn + B;
  const auto matched = e.match(2, prompt, session);
  EXPECT_EQ(matched.l1_tokens, 19);
  EXPECT_EQ(matched.l2_tokens, 0);
  EXPECT_EQ(matched.l1_pages->size(), 5);
  EXPECT_EQ(matched.node != 0, GetParam());
  ASSERT_TRUE(e.compute(2, prompt));
  const auto inserted = e.insert(2, prompt);
  EXPECT_EQ(inserted.duplicate_tokens, 0);
  EXPECT_EQ(std::vector(inserted.l1_pages->begin(), inserted.l1_pages->begin() + 5),
            *matched.l1_pages);
  e.release(2);
  EXPECT_EQ(e.match(3, prompt + A, session).l1_tokens, 35);
  EXPECT_EQ(e.cached(prompt), shared(35));
}

TEST_P(StreamingSession, KeepsItsPagesBetweenTurns) {
  e.run(first_turn, session);
  EXPECT_EQ(e.cache.stats().requests_open, 1);
  EXPECT_EQ(e.cache.evict({cache_tier::l1, 64})->tokens, 0);
  EXPECT_EQ(e.cache.stats().l1_free, 11);
  ASSERT_TRUE(e.cache.close_session({session}));
  EXPECT_EQ(e.cache.stats().requests_open, 0);
  EXPECT_EQ(e.cache.evict({cache_tier::l1, 64})->tokens, shared(19));
  EXPECT_EQ(e.cache.stats().l1_free, 16);
}

TEST_P(StreamingSession, KeepsWhatTheLastInsertSaidAndNotWhatItAllocated) {
  e.match(1, first_turn, session);
  ASSERT_TRUE(e.cache.allocate({1, 40}));
  ASSERT_TRUE(e.compute(1, first_turn));
  e.insert(1, range(1, 11));
  e.insert(1, first_turn);
  e.release(1);
  EXPECT_EQ(e.cache.stats().l1_free, 6);
  const auto matched = e.match(2, first_turn + B, session);
  EXPECT_EQ(matched.l1_tokens, 19);
  EXPECT_EQ(matched.l1_pages->size(), 5);
  EXPECT_EQ(e.cache.allocate({2, 40})->l1_pages->size(), 10);
  EXPECT_EQ(e.cache.stats().l1_free, 6) << "they count for the next turn";
}

TEST_P(StreamingSession, ADivergingPromptGivesTheSlotUp) {
  auto other = first_turn + B;
  other[18] = 999;
  for (const auto& prompt : {other, range(1, 19)}) {
    e.run(first_turn, session);
    EXPECT_EQ(e.match(2, prompt, session).l1_tokens, shared(19));
    EXPECT_EQ(e.cache.stats().l1_free, 16 - shared(19) / 4);
    e.release(2);
    EXPECT_EQ(e.cache.stats().requests_open, 0);
  }
}

TEST_P(StreamingSession, AnotherNamespaceGivesTheSlotUp) {
  e.run(first_turn, session);
  auto asked = ask(2, first_turn + B, session);
  asked.ns = {"adapter", ""};
  EXPECT_EQ(e.cache.match(asked)->l1_tokens, 0);
  e.cache.check_invariants();
}

TEST_P(StreamingSession, TheLimitMayCutThePageOfItsOwn) {
  e.run(first_turn, session);
  const auto matched = e.match(2, first_turn, session);
  EXPECT_EQ(matched.l1_tokens, 18);
  EXPECT_EQ(matched.l1_pages->size(), 5);
  ASSERT_TRUE(e.compute(2, first_turn));
  e.insert(2, first_turn);
  e.release(2);
  auto asked = ask(3, first_turn, session);
  asked.limit = 16;
  const auto whole = e.cache.match(asked);
  EXPECT_EQ(whole->l1_tokens, 16);
  EXPECT_EQ(whole->l1_pages->size(), 4);
}

// What follows the answer is computed, and nobody may write to pages that others read.
TEST_P(StreamingSession, ALimitInsideASharedPageStartsAfresh) {
  e.run(A, session);
  const auto matched = e.match(2, A, session);
  EXPECT_EQ(matched.l1_tokens, GetParam() ? 12 : 15);
  ASSERT_TRUE(e.compute(2, A));
  EXPECT_EQ(e.insert(2, A).duplicate_tokens, GetParam() ? 4 : 0);
  e.release(2);
  EXPECT_EQ(e.match(3, A + B, session).l1_tokens, 16);
}

TEST_P(StreamingSession, AnAbortedFirstTurnKeepsNothing) {
  e.match(1, first_turn, session);
  ASSERT_TRUE(e.compute(1, first_turn));
  e.release(1);
  EXPECT_EQ(e.cache.stats().requests_open, 0);
  EXPECT_EQ(e.cache.stats().l1_free, 16);
  EXPECT_EQ(e.match(2, first_turn, session).l1_tokens, 0);
}

TEST_P(StreamingSession, AnAbortedLaterTurnKeepsWhatWasThere) {
  e.run(first_turn, session);
  const auto prompt = first_turn + B;
  e.match(2, prompt, session);
  ASSERT_TRUE(e.compute(2, prompt));
  e.release(2);
  EXPECT_EQ(e.match(3, prompt, session).l1_tokens, 19);
  ASSERT_TRUE(e.compute(3, prompt));
  e.insert(3, prompt);
  e.release(3);
  EXPECT_EQ(e.match(4, prompt + A, session).l1_tokens, 35);
}

TEST_P(StreamingSession, AnInsertHasToBeginWithTheTokensOfTheMatch) {
  e.run(first_turn, session);
  auto other = first_turn + B;
  e.match(2, other, session);
  ASSERT_TRUE(e.compute(2, other));
  other[18] = 999;
  const auto digest = e.cache.digest();
  EXPECT_EQ(code(e.cache.insert({.request = 2, .tokens = share(other)})), ec::invalid_argument);
  EXPECT_EQ(code(e.cache.insert({.request = 2})), ec::invalid_argument);
  EXPECT_EQ(e.cache.digest(), digest);
}

TEST_P(StreamingSession, AnEmptyInsertHoldsNothing) {
  e.run({1, 2, 3}, session);
  EXPECT_EQ(e.match(1, {1, 2, 3}, session).l1_tokens, 2);
  e.insert(1, {});
  ASSERT_TRUE(e.cache.insert({.request = 1, .tokens = share({1, 2, 3})}));
  e.insert(1, {});
  e.release(1);
  EXPECT_EQ(e.cache.stats().requests_open, 0);
}

TEST_P(StreamingSession, AResumedTurnNeedsNoOtherTier) {
  e.run(first_turn, session);
  e.match(2, first_turn + B, session);
  const auto digest = e.cache.digest();
  EXPECT_EQ(e.cache.prefetch(2)->tokens, 0);
  EXPECT_TRUE(e.cache.schedule(2)->ready);
  const auto loaded = e.cache.load_back({2});
  EXPECT_EQ(loaded->l1_tokens, 19);
  EXPECT_EQ(loaded->loading_tokens, 0);
  EXPECT_EQ(loaded->l1_pages->size(), 5);
  EXPECT_EQ(loaded->progress, nullptr);
  EXPECT_EQ(e.cache.digest(), digest);
}

TEST_P(StreamingSession, AFailedMatchChangesNothing) {
  e.run(first_turn, session);
  e.match(2, A);
  const auto digest = e.cache.digest();
  EXPECT_EQ(code(e.cache.match({.request = 3, .session = session})), ec::invalid_argument);
  EXPECT_EQ(
    code(e.cache.match({.request = 3, .tokens = share(B), .limit = 17, .session = session})),
    ec::invalid_argument);
  EXPECT_EQ(code(e.cache.match(ask(2, B, session))), ec::invalid_argument) << "2 is open";
  EXPECT_EQ(e.cache.digest(), digest);
  e.match(3, first_turn + B, session);
  EXPECT_EQ(code(e.cache.match(ask(3, A))), ec::invalid_argument) << "3 is the session's";
  e.cache.check_invariants();
}

TEST_P(StreamingSession, HidesTheNumberThatARequestHasInside) {
  e.run(first_turn, session);
  const auto digest = e.cache.digest();
  const auto hidden = reserved | session.generation;
  EXPECT_EQ(code(e.cache.match(ask(hidden, A))), ec::invalid_argument);
  EXPECT_EQ(code(e.cache.match(ask(reserved, A, session))), ec::invalid_argument);
  EXPECT_EQ(code(e.cache.prefetch(hidden)), ec::unknown_id);
  EXPECT_EQ(code(e.cache.schedule(hidden)), ec::unknown_id);
  EXPECT_EQ(code(e.cache.load_back({hidden})), ec::unknown_id);
  EXPECT_EQ(code(e.cache.allocate({hidden, 64})), ec::unknown_id);
  EXPECT_EQ(code(e.cache.insert({.request = hidden, .tokens = share(A)})), ec::unknown_id);
  EXPECT_EQ(code(e.cache.release(hidden)), ec::unknown_id);
  EXPECT_EQ(e.cache.digest(), digest);
}

TEST_P(StreamingSession, ErrorsNameTheRequestOfTheEngine) {
  e.match(5, first_turn, session);
  const auto refused = e.cache.allocate({5, 68});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().detail, "request 5 needs 17 more pages");
}

// -- sessions that stream: clear, stop -------------------------------------------

TEST_P(StreamingSession, ClearGivesUpSlotsAndLeavesSessionsOpen) {
  e.run(first_turn, session);
  ASSERT_TRUE(e.cache.clear());
  EXPECT_EQ(e.cache.stats().l1_free, 16);
  EXPECT_EQ(e.match(1, first_turn + B, session).l1_tokens, 0);
}

TEST_P(StreamingSession, ARefusedClearChangesNothing) {
  e.run(first_turn, session);
  for (const auto& other : {session_ref{}, e.open_session(8, false), e.open_session(9, true)}) {
    e.match(1, A, other);
    const auto digest = e.cache.digest();
    EXPECT_EQ(code(e.cache.clear()), ec::invalid_argument);
    EXPECT_EQ(e.cache.digest(), digest);
    e.release(1);
  }
  e.match(2, first_turn + B, session);
  EXPECT_EQ(code(e.cache.clear()), ec::invalid_argument);
  e.release(2);
  EXPECT_TRUE(e.cache.clear());
}

TEST_P(StreamingSession, OnceStoppedASlotServesNothing) {
  e.run(first_turn, session);
  const auto other = e.open_session(8, true);
  e.match(1, B, other);
  ASSERT_TRUE(e.compute(1, B));
  e.cache.stop_serving();
  EXPECT_EQ(e.match(2, first_turn + B, session).l1_tokens, 0);
  e.insert(1, B);
  e.release(1);
  e.release(2);
  EXPECT_EQ(e.cache.stats().requests_open, 0);
  e.cache.check_invariants();
}
