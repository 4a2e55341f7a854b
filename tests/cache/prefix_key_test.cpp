#include "cache/hash/page_hash.hpp"
#include "cache/radix/prefix_key.hpp"
#include "tests/cache/page_keys.hpp"
#include "tests/cache/tree_driver.hpp"

#include <gtest/gtest.h>

#include <random>

using namespace hicache;
using namespace hicache::test;

namespace {

prefix_key key(tokens_t tokens, const cache_namespace& ns = {}) {
  const auto size = tokens.size();
  return {ns, share(std::move(tokens)), size, false};
}

prefix_key pairs(tokens_t tokens, const cache_namespace& ns = {}) {
  auto result = key(std::move(tokens), ns);
  result.bigram = true;
  return result;
}

/// The plain meaning of equal_pages.
uint64_t count_equal_pages(const tokens_t& a, const tokens_t& b, uint64_t pages, uint32_t page_size,
                           uint32_t overlap) {
  auto equal = uint64_t{0};
  while (equal < pages * page_size + overlap && a[equal] == b[equal])
    ++equal;
  return equal < overlap ? 0 : (equal - overlap) / page_size;
}

} // namespace

// Case K2.
TEST(PrefixKey, ComparesPairs) {
  EXPECT_EQ(common_prefix(pairs({1, 2, 3, 4, 5}), pairs({1, 2, 3, 9, 5}), 1), 2);
  EXPECT_EQ(common_prefix(pairs({1, 2, 3, 4, 5}), pairs({1, 2, 3, 4, 5}), 1), 4);
  EXPECT_EQ(common_prefix(pairs({1, 2}), pairs({1, 2}), 1), 1);
  EXPECT_EQ(common_prefix(pairs({1}), pairs({1}), 1), 0);
  EXPECT_EQ(common_prefix(pairs({}), pairs({1}), 1), 0);
}

// Case K2, and L18.
TEST(PrefixKey, ComparesWholePages) {
  auto other = range(0, 130);
  other[70] = 7777;
  EXPECT_EQ(common_prefix(key(range(0, 130)), key(other), 64), 64);
  EXPECT_EQ(common_prefix(key(range(0, 130)), key(other), 1), 70);
  EXPECT_EQ(common_prefix(key(range(0, 130)), key(range(0, 130)), 64), 128);
  EXPECT_EQ(common_prefix(key(range(0, 63)), key(range(0, 130)), 64), 0);
  EXPECT_EQ(common_prefix(pairs(range(0, 128)), pairs(range(0, 130)), 64), 64);
  EXPECT_EQ(common_prefix(pairs(range(0, 129)), pairs(range(0, 130)), 64), 128);
}

// Case K3.
TEST(PrefixKey, RefusesToCompareAcrossNamespaces) {
  const auto outcome = common_prefix(key({1, 2}, {"a", ""}), key({1, 2}, {"", "a"}), 1);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ec::invalid_argument);
  EXPECT_EQ(outcome.error().detail,
            R"(keys of the namespaces ("a", "") and ("", "a") cannot be compared)");
  EXPECT_FALSE(common_prefix(key({}), key({}, {"a", ""}), 1)) << "even if nothing is to compare";
  EXPECT_EQ(common_prefix(key({1, 2}, {"a", "b"}), key({1, 3}, {"a", "b"}), 1), 1);
}

TEST(PrefixKey, RefusesToCompareTokensWithPairs) {
  const auto outcome = common_prefix(key({1, 2}), pairs({1, 2}), 1);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ec::invalid_argument);
}

// Case K4.
TEST(PrefixKey, IsCutToWholePages) {
  EXPECT_EQ(key({1, 2, 3, 4, 5}).page_aligned(4).units(), 4);
  EXPECT_EQ(key({1, 2, 3}).page_aligned(4).units(), 0);
  const auto cut = pairs({1, 2, 3, 4, 5, 6}).page_aligned(4);
  EXPECT_EQ(cut.units(), 4);
  EXPECT_EQ(cut.view().size(), 5) << "four pairs look at five tokens";
  EXPECT_EQ(pairs({1, 2, 3, 4}).page_aligned(4).units(), 0);
  EXPECT_EQ(prefix_key{}.page_aligned(4).units(), 0);
}

TEST(PrefixKey, SharesItsTokens) {
  const auto whole = key({1, 2, 3, 4, 5});
  const auto cut = whole.page_aligned(2);
  EXPECT_EQ(cut.tokens, whole.tokens);
  EXPECT_EQ(cut.view().size(), 4);
  EXPECT_EQ(common_prefix(cut, whole, 1), 4) << "the limit counts, not the buffer";
}

// Case K5.
TEST(PrefixKey, KeepsTheFieldsOfANamespaceApart) {
  EXPECT_FALSE(common_prefix(key({1, 2, 3}, {"bc", "a"}), key({1, 2, 3}, {"c", "ab"}), 1));
  EXPECT_NE(namespace_seed({"bc", "a"}), namespace_seed({"c", "ab"}));
}

TEST(EqualPages, FindsTheFirstDifferenceWhereverItIs) {
  const auto a = range(0, 6 * 4096);
  auto b = a;
  for (auto at = size_t{0}; at < a.size(); at = at < 400 ? at + 1 : at + 97) {
    ++b[at];
    EXPECT_EQ(equal_tokens(a.data(), b.data(), a.size()), at);
    EXPECT_EQ(equal_tokens(a.data(), b.data(), at), at);
    b[at] = a[at];
  }
  EXPECT_EQ(equal_tokens(a.data(), b.data(), a.size()), a.size());
  EXPECT_EQ(equal_tokens(nullptr, nullptr, 0), 0);
}

TEST(EqualPages, AgreesWithComparingTokenByToken) {
  constexpr auto seed = 20261121U;
  auto random = std::mt19937{seed};
  const auto below = [&random](uint64_t bound) { return random() % bound; };
  for (auto round = 0; round < 2000; ++round) {
    const auto page_size = uint32_t{1} << below(7);
    const auto overlap = static_cast<uint32_t>(below(2));
    const auto pages = below(200);
    auto a = tokens_t(pages * page_size + overlap + 1);
    for (auto& token : a)
      token = static_cast<token_id>(below(3));
    auto b = a;
    if (const auto at = below(b.size() + 20); at < b.size())
      b[at] += 1 + static_cast<token_id>(below(2));
    ASSERT_EQ(equal_pages(a.data(), b.data(), pages, page_size, overlap),
              count_equal_pages(a, b, pages, page_size, overlap))
      << "seed " << seed << ", round " << round;
  }
}
