// Answers list the pages that an engine does not know yet.

#include "cache/prefix/prefix_cache.hpp"
#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

namespace hicache::test {

namespace {

using page_vector = std::vector<page_index>;

const auto A = range(1, 17);
const auto B = range(101, 109);

match_request ask(request_id request, const tokens_t& tokens) {
  return {.request = request, .tokens = share(tokens), .limit = tokens.size()};
}

page_vector tail(const page_vector& pages, size_t first) {
  return {pages.begin() + static_cast<ptrdiff_t>(first), pages.end()};
}

/// A cache of pages of four tokens that holds the four pages of A.
class KnownPages : public ::testing::Test {
protected:
  KnownPages() {
    EXPECT_TRUE(cache_.match(ask(1, A)));
    EXPECT_TRUE(cache_.allocate({1, A.size()}));
    EXPECT_TRUE(cache_.insert({.request = 1, .tokens = share(A)}));
    EXPECT_TRUE(cache_.release(1));
  }

  prefix_cache cache_{{.page_size = 4, .l1_pages = 16, .l2_pages = 0}};
};

} // namespace

TEST_F(KnownPages, AreNotListedAgain) {
  const auto matched = *cache_.match(ask(2, A + B))->l1_pages;
  ASSERT_EQ(matched.size(), 4u);
  EXPECT_EQ(*cache_.load_back({.request = 2})->l1_pages, matched);
  EXPECT_EQ(*cache_.load_back({.request = 2, .known_pages = 3})->l1_pages, tail(matched, 3));
  EXPECT_TRUE(cache_.load_back({.request = 2, .known_pages = UINT64_MAX})->l1_pages->empty());
  const auto own = *cache_.allocate({2, 24, 4})->l1_pages;
  EXPECT_EQ(own.size(), 2u);
  const auto all = *cache_.allocate({2, 24})->l1_pages;
  EXPECT_EQ(tail(all, 4), own);
  EXPECT_EQ(tail(all, 0), *cache_.pages_of(2));
  const auto next = *cache_.allocate({2, 25, 6})->l1_pages;
  EXPECT_EQ(next.size(), 1u);
  EXPECT_EQ(next, tail(*cache_.pages_of(2), 6));
  EXPECT_EQ(*cache_.load_back({.request = 2})->l1_pages, matched) << "its own pages are not cached";
  const auto inserted
    = *cache_.insert({.request = 2, .tokens = share(A + B), .known_pages = 4})->l1_pages;
  EXPECT_EQ(inserted, tail(*cache_.pages_of(2), 4));
  cache_.check_invariants();
}

TEST_F(KnownPages, ThatWereComputedTwiceAreListedAsTheTreeHasThem) {
  for (const auto request : {request_id{2}, request_id{3}}) {
    ASSERT_TRUE(cache_.match(ask(request, A + B)));
    ASSERT_TRUE(cache_.allocate({request, 24}));
  }
  const auto first = cache_.insert({.request = 2, .tokens = share(A + B), .known_pages = 4});
  const auto second = cache_.insert({.request = 3, .tokens = share(A + B), .known_pages = 4});
  EXPECT_EQ(second->duplicate_tokens, 8u);
  EXPECT_EQ(*second->l1_pages, *first->l1_pages);
}

TEST_F(KnownPages, OfATurnThatAStreamingSessionKeptAreNotListedAgain) {
  const auto session = session_ref{7, cache_.open_session({7, true})->generation};
  auto asked = ask(2, A + B);
  asked.session = session;
  ASSERT_TRUE(cache_.match(asked));
  const auto pages = *cache_.allocate({2, 24})->l1_pages;
  ASSERT_TRUE(cache_.insert({.request = 2, .tokens = share(A + B)}));
  ASSERT_TRUE(cache_.release(2));
  asked = ask(3, A + B + A);
  asked.session = session;
  EXPECT_EQ(*cache_.match(asked)->l1_pages, pages);
  EXPECT_EQ(*cache_.load_back({.request = 3, .known_pages = 5})->l1_pages, tail(pages, 5));
}

} // namespace hicache::test
