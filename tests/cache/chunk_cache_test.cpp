// A cache that shares no prefixes (SGLang's ChunkCache).

#include "cache/prefix/prefix_cache.hpp"
#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

#include <variant>

using namespace hicache;
using namespace hicache::test;
using namespace std::chrono_literals;

namespace {

const auto A = range(1, 17);

tree_options eight_pages() {
  return {.page_size = 4, .l1_pages = 8, .l2_pages = 5, .share_prefixes = false};
}

template <class T>
ec code(const result<T>& outcome) {
  return outcome ? ec::none : outcome.error().code;
}

match_request ask(request_id request, const tokens_t& tokens) {
  return {.request = request, .tokens = share(tokens), .limit = tokens.size()};
}

insert_request computed(request_id request, const tokens_t& tokens) {
  return {.request = request, .tokens = share(tokens)};
}

} // namespace

// Case L10: nothing is ever found, nothing can be evicted.
TEST(ChunkCache, SharesNothing) {
  auto cache = prefix_cache{eight_pages()};
  for (const auto request : {request_id{1}, request_id{2}}) {
    const auto matched = cache.match(ask(request, A));
    EXPECT_EQ(matched->l1_tokens + matched->l2_tokens, 0);
    EXPECT_TRUE(matched->l1_pages->empty());
    EXPECT_EQ(matched->node, 0);
    const auto pages = cache.allocate({request, 16})->l1_pages;
    const auto inserted = cache.insert(computed(request, A));
    EXPECT_EQ(inserted->duplicate_tokens, 0);
    EXPECT_EQ(*inserted->l1_pages, *pages);
    EXPECT_EQ(inserted->node, 0);
  }
  EXPECT_EQ(cache.evict({cache_tier::l1, 32})->tokens, 0);
  EXPECT_TRUE(cache.nodes().empty());
  EXPECT_EQ(cache.stats().l1_free, 0);
  EXPECT_EQ(cache.stats().l2_free, 5) << "L2 is not used";
  EXPECT_EQ(cache.stats().requests_open, 2);
  cache.check_invariants();
}

TEST(ChunkCache, ReleaseFreesThePages) {
  auto cache = prefix_cache{eight_pages()};
  ASSERT_TRUE(cache.match(ask(1, A)));
  ASSERT_TRUE(cache.allocate({1, 32}));
  ASSERT_TRUE(cache.match(ask(2, A)));
  EXPECT_EQ(code(cache.allocate({2, 1})), ec::out_of_device_pages);
  ASSERT_TRUE(cache.release(1));
  EXPECT_EQ(cache.allocate({2, 1})->l1_pages->size(), 1);
  EXPECT_EQ(cache.stats().l1_free, 7);
  cache.check_invariants();
}

TEST(ChunkCache, AllocationIsAllOrNothingAndCountsWhatIsThere) {
  auto cache = prefix_cache{eight_pages()};
  ASSERT_TRUE(cache.match(ask(1, A)));
  const auto first = cache.allocate({1, 5})->l1_pages;
  EXPECT_EQ(first->size(), 2);
  EXPECT_EQ(*cache.allocate({1, 8})->l1_pages, *first);
  EXPECT_EQ(code(cache.allocate({1, 33})), ec::out_of_device_pages);
  EXPECT_EQ(cache.stats().l1_free, 6);
  const auto more = cache.allocate({1, 9})->l1_pages;
  ASSERT_EQ(more->size(), 3);
  EXPECT_EQ((std::vector<page_index>{more->begin(), more->begin() + 2}), *first);
}

TEST(ChunkCache, RefusesWhatItCannotDo) {
  auto cache = prefix_cache{eight_pages()};
  ASSERT_TRUE(cache.match(ask(1, A)));
  ASSERT_TRUE(cache.allocate({1, 12}));
  const auto digest = cache.digest();
  EXPECT_EQ(code(cache.match(ask(1, A))), ec::invalid_argument);
  EXPECT_EQ(code(cache.match({.request = 2})), ec::invalid_argument);
  EXPECT_EQ(code(cache.match({.request = 2, .tokens = share(A), .limit = 17})),
            ec::invalid_argument);
  EXPECT_EQ(code(cache.insert(computed(1, A))), ec::invalid_argument) << "12 tokens have pages";
  EXPECT_EQ(code(cache.insert({.request = 1})), ec::invalid_argument);
  EXPECT_EQ(code(cache.insert(computed(2, A))), ec::unknown_id);
  EXPECT_EQ(code(cache.allocate({2, 1})), ec::unknown_id);
  EXPECT_EQ(code(cache.release(2)), ec::unknown_id);
  EXPECT_EQ(code(cache.prefetch(2)), ec::unknown_id);
  EXPECT_EQ(code(cache.schedule(2)), ec::unknown_id);
  EXPECT_EQ(code(cache.load_back({2})), ec::unknown_id);
  for (const auto& outcome : {cache.lock(1), cache.unlock(1)})
    EXPECT_EQ(code(outcome), ec::unknown_id);
  EXPECT_EQ(code(cache.backup(1)), ec::unknown_id);
  EXPECT_EQ(code(cache.load_node({1})), ec::unknown_id);
  EXPECT_EQ(code(cache.refer(1)), ec::unknown_id);
  EXPECT_EQ(code(cache.pin({.tokens = nullptr, .ttl = 1s})), ec::invalid_argument);
  EXPECT_EQ(code(cache.clear()), ec::invalid_argument);
  EXPECT_EQ(cache.digest(), digest);
}

TEST(ChunkCache, HasNothingToDoForTheOtherTiers) {
  auto cache = prefix_cache{eight_pages()};
  cache.change_storage({});
  ASSERT_TRUE(cache.match(ask(1, A)));
  EXPECT_EQ(cache.prefetch(1)->tokens, 0);
  EXPECT_TRUE(cache.schedule(1)->ready);
  const auto loaded = cache.load_back({1});
  EXPECT_EQ(loaded->l1_tokens + loaded->loading_tokens, 0);
  EXPECT_TRUE(loaded->l1_pages->empty());
  EXPECT_EQ(loaded->progress, nullptr);
  EXPECT_EQ(cache.pin({.tokens = share(A), .ttl = 1s})->tokens, 0);
  EXPECT_EQ(cache.unpin({.tokens = share(A)})->tokens, 0);
  EXPECT_FALSE(cache.in_flight());
  EXPECT_TRUE(cache.fetching().empty());
  EXPECT_TRUE(cache.take_effects().empty());
  EXPECT_TRUE(cache.step(step_facts{0, 0, {}, {}, 5}, {}).empty());
}

TEST(ChunkCache, TheFirstEventIsThatNothingIsCached) {
  auto options = eight_pages();
  EXPECT_TRUE(name_events(prefix_cache{options}.take_changes()).empty());
  options.events = true;
  auto cache = prefix_cache{options};
  const auto events = name_events(cache.take_changes());
  ASSERT_EQ(events.size(), 1);
  EXPECT_TRUE(std::holds_alternative<cache_cleared>(events.front()));
  ASSERT_TRUE(cache.match(ask(1, A)));
  ASSERT_TRUE(cache.release(1));
  EXPECT_TRUE(name_events(cache.take_changes()).empty());
}

TEST(ChunkCache, EqualOperationsGiveEqualDigests) {
  auto a = prefix_cache{eight_pages()};
  auto b = prefix_cache{eight_pages()};
  const auto empty = a.digest();
  for (auto* cache : {&a, &b}) {
    ASSERT_TRUE(cache->match(ask(1, A)));
    ASSERT_TRUE(cache->allocate({1, 16}));
    ASSERT_TRUE(cache->match(ask(2, A)));
    EXPECT_NE(cache->digest(), empty);
  }
  EXPECT_EQ(a.digest(), b.digest());
  ASSERT_TRUE(a.release(2));
  EXPECT_NE(a.digest(), b.digest());
  ASSERT_TRUE(b.release(2));
  EXPECT_EQ(a.digest(), b.digest());
}

TEST(ChunkCache, ClearsWithoutRequests) {
  auto cache = prefix_cache{eight_pages()};
  for (const auto request : {request_id{1}, request_id{2}}) {
    EXPECT_EQ(cache.match(ask(request, A))->l1_tokens, 0);
    ASSERT_TRUE(cache.allocate({request, 16}));
    ASSERT_TRUE(cache.insert(computed(request, A)));
  }
  ASSERT_TRUE(cache.release(1));
  ASSERT_TRUE(cache.release(2));
  EXPECT_TRUE(cache.clear());
  EXPECT_EQ(cache.stats().l1_free, 8);
}
