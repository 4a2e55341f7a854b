#include "hicache/rank_reducer.hpp"
#include "runtime/rank_agreement.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace hicache {
namespace {

using settings = std::vector<std::pair<std::string, std::string>>;

/// Runs `body` once per rank, each on a thread of its own, as processes would.
template <class Result>
std::vector<Result> on_ranks(uint32_t ranks, const std::function<Result(rank_reducer&)>& body) {
  const auto peers = make_local_reducers(ranks);
  auto outcomes = std::vector<std::optional<Result>>(ranks);
  {
    auto threads = std::vector<std::jthread>{};
    for (auto rank = 0u; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { outcomes[rank].emplace(body(*peers[rank])); });
  }
  auto all = std::vector<Result>{};
  for (auto& outcome : outcomes)
    all.push_back(std::move(*outcome));
  return all;
}

TEST(ReduceNowTest, EveryRankHearsTheMinimum) {
  const auto minima = on_ranks<result<std::vector<int64_t>>>(3, [](rank_reducer& ranks) {
    return reduce_now(ranks, {ranks.rank() + 5, -int64_t{ranks.rank()}});
  });
  for (const auto& each : minima) {
    ASSERT_TRUE(each);
    EXPECT_EQ(*each, (std::vector<int64_t>{5, -2}));
  }
}

TEST(CountRanksOnHostTest, RanksOfOneProcessShareItsMachine) {
  for (const auto& each : on_ranks<result<uint32_t>>(3, count_ranks_on_host))
    EXPECT_EQ(each, 3u);
}

std::vector<result<void>> agree(uint32_t ranks, const std::function<settings(uint32_t)>& of_rank) {
  return on_ranks<result<void>>(
    ranks, [&](rank_reducer& peers) { return agree_on_settings(peers, of_rank(peers.rank())); });
}

TEST(AgreeOnSettingsTest, EqualSettingsSucceed) {
  for (const auto& each : agree(3, [](uint32_t) { return settings{{"a", "1"}, {"b", ""}}; }))
    EXPECT_TRUE(each);
  EXPECT_TRUE(agree(1, [](uint32_t) { return settings{{"a", "1"}}; }).front());
}

TEST(AgreeOnSettingsTest, DifferentFieldsAreNamedOnceByRankZero) {
  const auto outcomes = agree(3, [](uint32_t rank) {
    return settings{{"page-size", rank == 1 ? "32" : "64"},
                    {"model", "tiny"},
                    {"index", "host:" + std::to_string(rank)}};
  });
  ASSERT_FALSE(outcomes[0]);
  EXPECT_EQ(outcomes[0].error().code, ec::configuration_mismatch);
  EXPECT_EQ(outcomes[0].error().detail, "the ranks were started with different values of "
                                        "--page-size, --index; expected the same on every rank");
  for (const auto rank : {1u, 2u}) {
    ASSERT_FALSE(outcomes[rank]);
    EXPECT_EQ(outcomes[rank].error().code, ec::stopping);
  }
}

TEST(AgreeOnSettingsTest, ADifferenceOnAnyRankIsFound) {
  for (auto odd = 0u; odd < 4; ++odd)
    for (const auto& each : agree(4, [odd](uint32_t rank) {
           return settings{{"x", rank == odd ? "1" : "2"}};
         }))
      EXPECT_FALSE(each) << odd;
}

std::vector<result<void>> settle(uint32_t ranks,
                                 const std::function<result<void>(uint32_t)>& of_rank) {
  return on_ranks<result<void>>(
    ranks, [&](rank_reducer& peers) { return agree_on_outcome(peers, of_rank(peers.rank())); });
}

TEST(AgreeOnOutcomeTest, SucceedsIfAllDo) {
  for (const auto& each : settle(3, [](uint32_t) { return result<void>{}; }))
    EXPECT_TRUE(each);
}

TEST(AgreeOnOutcomeTest, FailingRankMakesAllFailAndTheLowestSaysWhy) {
  const auto outcomes = settle(4, [](uint32_t rank) -> result<void> {
    if (rank == 1 || rank == 3)
      return fail(ec::io_failure, "rank " + std::to_string(rank));
    return {};
  });
  ASSERT_FALSE(outcomes[1]);
  EXPECT_EQ(outcomes[1].error(), (error{ec::io_failure, "rank 1"}));
  for (const auto rank : {0u, 2u, 3u}) {
    ASSERT_FALSE(outcomes[rank]);
    EXPECT_EQ(outcomes[rank].error().code, ec::stopping);
  }
}

} // namespace
} // namespace hicache
