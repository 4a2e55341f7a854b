// Names of pages that are computed when they are first read.

#include "cache/hash/page_hash.hpp"
#include "cache/hash/page_names.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace hicache {

namespace {

constexpr auto page_size = uint32_t{4};

token_buffer count_to(size_t tokens) {
  auto list = std::vector<token_id>(tokens);
  std::iota(list.begin(), list.end(), 1);
  return std::make_shared<const std::vector<token_id>>(std::move(list));
}

/// One page_names for each of `pages` pages, each after the one before.
std::vector<name_run> chain(const token_buffer& tokens, uint64_t pages, uint32_t overlap = 0) {
  auto runs = std::vector<name_run>{};
  for (auto i = uint64_t{0}; i < pages; ++i) {
    const auto span = token_span{tokens, i * page_size, page_size + overlap};
    const auto prior = runs.empty() ? name_run{} : runs.back();
    runs.push_back({std::make_shared<const page_names>(prior, span, page_size, overlap), 0, 1});
  }
  return runs;
}

} // namespace

TEST(PageNames, AreThoseOfTheWholePrefixWhereverTheyAreReadFirst) {
  for (const auto overlap : {0u, 1u}) {
    const auto tokens = count_to(8 * page_size + overlap);
    const auto expected = hash_pages(*tokens, page_size, nullptr, overlap);
    ASSERT_EQ(expected.size(), 8u);
    for (auto first_read = size_t{0}; first_read < 8; ++first_read) {
      const auto runs = chain(tokens, 8, overlap);
      EXPECT_EQ(runs[first_read].get().front(), expected[first_read]);
      EXPECT_EQ(path_names{runs}.get(0, 8), expected);
    }
  }
}

TEST(PageNames, FollowOnASeed) {
  const auto seed = *namespace_seed({"adapter", "salt"});
  const auto tokens = count_to(2 * page_size);
  const auto known = std::make_shared<const page_names>(std::vector{seed});
  const auto names = page_names{{known, 0, 1}, token_span{tokens, 0, tokens->size()}, page_size, 0};
  const auto expected = hash_pages(*tokens, page_size, &seed);
  EXPECT_EQ(names.size(), 2u);
  EXPECT_EQ(std::vector(names.get().begin(), names.get().end()), expected);
}

TEST(PageNames, RunsThatAreCutStayParts) {
  const auto tokens = count_to(5 * page_size);
  const auto expected = hash_pages(*tokens, page_size, nullptr);
  auto lower = name_run{std::make_shared<const page_names>(
                          name_run{}, token_span{tokens, 0, tokens->size()}, page_size, 0),
                        0, 5};
  const auto upper = lower.cut_front(2);
  EXPECT_EQ(upper.count, 2u);
  EXPECT_EQ(upper.get().back(), expected[1]);
  EXPECT_EQ(lower.count, 3u);
  EXPECT_EQ(lower.get().front(), expected[2]);
  EXPECT_EQ(lower.get().back(), expected[4]);
}

TEST(PageNames, OfAPathGoAcrossRunsAndKnowThePageBefore) {
  const auto tokens = count_to(6 * page_size);
  const auto expected = hash_pages(*tokens, page_size, nullptr);
  const auto runs = chain(tokens, 6);
  const auto path = path_names{{runs.begin() + 2, runs.end()}, runs[1]};
  EXPECT_EQ(path.size(), 4u);
  EXPECT_EQ(path.get(1, 2), (std::vector{expected[3], expected[4]}));
  EXPECT_TRUE(path.get(4, 0).empty());
  EXPECT_EQ(path.before(0), expected[1]);
  EXPECT_EQ(path.before(3), expected[4]);
  EXPECT_EQ(path_names{runs}.before(0), page_key{});
}

TEST(PageNames, LongChainsNeedNoStack) {
  // Each link of a recursion would take a hundred bytes at least: 8 MiB are gone long before.
  constexpr auto links = uint64_t{500'000};
  const auto tokens = count_to(links * page_size);
  auto runs = chain(tokens, links);
  const auto last = runs.back();
  EXPECT_EQ(last.get().front(), hash_pages(*tokens, page_size, nullptr).back());
  auto unread = chain(tokens, links).back();
  unread = {};
}

TEST(PageNames, MayBeReadByManyThreadsAtOnce) {
  constexpr auto links = uint64_t{2000};
  const auto tokens = count_to(links * page_size);
  const auto expected = hash_pages(*tokens, page_size, nullptr);
  const auto runs = chain(tokens, links);
  auto readers = std::vector<std::thread>{};
  auto found = std::vector<std::vector<page_key>>(4);
  for (auto reader = size_t{0}; reader < found.size(); ++reader)
    readers.emplace_back([&, reader] {
      // From different ends, so that they meet.
      for (auto i = size_t{0}; i < links; ++i) {
        const auto at = reader % 2 == 0 ? i : links - 1 - i;
        found[reader].push_back(runs[at].get().front());
      }
    });
  for (auto& reader : readers)
    reader.join();
  for (auto reader = size_t{0}; reader < found.size(); ++reader)
    for (auto i = size_t{0}; i < links; ++i)
      ASSERT_EQ(found[reader][i], expected[reader % 2 == 0 ? i : links - 1 - i]);
}

} // namespace hicache
