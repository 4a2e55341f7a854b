#include "cache/store/fetch_reads.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace hicache {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr auto usual = storage_traffic{};

std::vector<page_index> pages(uint32_t count) {
  auto list = std::vector<page_index>(count);
  std::iota(list.begin(), list.end(), page_index{10});
  return list;
}

storage_outcome all(uint64_t count, ec code = ec::none) {
  return {std::vector<ec>(count, code)};
}

TEST(FetchReadsTest, KeepsAFewBatchesUnderWay) {
  auto fetch = fetch_reads{};
  fetch.begin(pages(5 * usual.batch_pages + 1));
  auto parts = std::vector<fetch_reads::part>{};
  while (const auto part = fetch.next())
    parts.push_back(*part);
  EXPECT_EQ(parts.size(), usual.batches_in_flight);
  fetch.finish(parts[1], all(parts[1].count));
  EXPECT_EQ(fetch.next()->first, 4 * usual.batch_pages);
}

TEST(FetchReadsTest, SizeAndNumberOfBatchesAreThoseOfItsTraffic) {
  auto fetch = fetch_reads{};
  fetch.begin(pages(35));
  const auto traffic = storage_traffic{.batch_pages = 10, .batches_in_flight = 3};
  for (const auto first : {0u, 10u, 20u}) {
    const auto part = fetch.next(traffic);
    ASSERT_TRUE(part);
    EXPECT_EQ(part->first, first);
    EXPECT_EQ(part->count, 10u);
  }
  EXPECT_FALSE(fetch.next(traffic));
  fetch.finish({0, 10}, all(10));
  EXPECT_EQ(fetch.next(traffic)->count, 5u);
}

TEST(FetchReadsTest, ReadsNothingBehindAPageThatIsGone) {
  auto fetch = fetch_reads{};
  fetch.begin(pages(5 * usual.batch_pages));
  const auto first = *fetch.next();
  auto outcome = all(first.count);
  outcome.pages[3] = ec::not_found;
  const auto ends = fetch.finish(first, outcome);
  EXPECT_EQ(ends.read, first.count - 1);
  EXPECT_EQ(ends.failures, 0u);
  EXPECT_FALSE(fetch.next());
  EXPECT_EQ(fetch.why(), miss_reason::gone);
  const auto end = fetch.end();
  EXPECT_EQ(*end.arrived, pages(3));
  EXPECT_EQ(end.free.size(), 5 * usual.batch_pages - 3);
}

TEST(FetchReadsTest, MarkedPagesArriveThoughTheirReadIsUnderWay) {
  auto fetch = fetch_reads{};
  fetch.begin(pages(5));
  const auto read = *fetch.next();
  for (auto i = 0; i < 2; ++i) // Two objects a page; one of the last page is missing.
    for (const auto page : {0u, 1u, 3u})
      fetch.marks()->add(page, 2);
  fetch.marks()->add(4, 2);
  const auto end = fetch.end();
  EXPECT_THAT(*end.arrived, ElementsAre(10, 11));
  EXPECT_THAT(end.free, ElementsAre(13));
  EXPECT_EQ(end.read, 3u);
  fetch.marks()->add(4, 2);
  const auto rest = fetch.finish(read, all(5));
  EXPECT_THAT(rest.free, UnorderedElementsAre(12, 14));
  EXPECT_EQ(rest.read, 2u);
}

TEST(FetchReadsTest, PagesOfALateReadAreInQuarantineUnlessTheyAreMarked) {
  auto fetch = fetch_reads{};
  fetch.begin(pages(3));
  const auto read = *fetch.next();
  fetch.marks()->add(0, 1);
  auto late = all(3, ec::deadline_exceeded);
  late.ticket = 7;
  const auto ends = fetch.finish(read, late);
  EXPECT_THAT(ends.quarantined, ElementsAre(11, 12));
  EXPECT_THAT(ends.free, IsEmpty());
  EXPECT_EQ(ends.failures, 2u);
  fetch.marks()->add(1, 1); // Too late.
  const auto end = fetch.end();
  EXPECT_THAT(*end.arrived, ElementsAre(10));
  EXPECT_THAT(end.free, IsEmpty());
  EXPECT_EQ(fetch.why(), miss_reason::late);
}

TEST(FetchReadsTest, EveryPageGoesToOnePlaceAndOnlyGoodOnesArrive) {
  for (auto seed = 0u; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    auto random = std::mt19937_64{seed};
    const auto count = static_cast<uint32_t>(1 + random() % (8 * usual.batch_pages));
    auto fetch = fetch_reads{};
    fetch.begin(pages(count));
    auto under_way = std::vector<fetch_reads::part>{};
    auto seen = std::vector<page_index>{};
    auto is_good = std::vector<bool>(count);
    const auto keep = [&](const std::vector<page_index>& list) {
      seen.insert(seen.end(), list.begin(), list.end());
    };
    const auto end = [&] {
      const auto answer = fetch.end();
      keep(*answer.arrived);
      keep(answer.free);
      for (auto i = size_t{0}; i < answer.arrived->size(); ++i)
        EXPECT_TRUE((*answer.arrived)[i] == 10 + i && (is_good[i] || fetch.marks()->has(i))) << i;
    };
    const auto last_round = random() % 12;
    for (auto round = 0u; round <= last_round || !under_way.empty(); ++round) {
      while (const auto part = fetch.next())
        under_way.push_back(*part);
      for (const auto& part : under_way)
        for (auto i = part.first; i < part.first + part.count; ++i)
          if (!fetch.marks()->has(i) && random() % 8 == 0)
            fetch.marks()->add(i, 1);
      if (round == last_round)
        end();
      if (under_way.empty() || random() % 2 == 0)
        continue;
      const auto part = under_way.back();
      under_way.pop_back();
      auto outcome = all(part.count, random() % 4 == 0 ? ec::deadline_exceeded : ec::none);
      outcome.ticket = outcome.pages[0] == ec::none ? 0 : 1;
      if (random() % 4 == 0)
        outcome.pages[random() % part.count] = ec::corrupt_page;
      for (auto i = uint64_t{0}; i < part.count; ++i)
        is_good[part.first + i] = outcome.pages[i] == ec::none;
      const auto ends = fetch.finish(part, outcome);
      keep(ends.free);
      keep(ends.quarantined);
    }
    if (!fetch.is_ended())
      end();
    std::ranges::sort(seen);
    EXPECT_EQ(seen, pages(count));
  }
}

} // namespace
} // namespace hicache
