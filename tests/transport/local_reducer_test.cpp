#include "hicache/rank_reducer.hpp"
#include "tests/transport/reducer_contract.hpp"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <semaphore>
#include <thread>

namespace hicache {
namespace {

using answer = std::optional<result<std::vector<int64_t>>>;

rank_reducer::callback into(answer& where) {
  return [&where](auto minima) {
    ASSERT_FALSE(where.has_value()) << "called twice";
    where = std::move(minima);
  };
}

/// Every rank on a thread of its own.
class LocalAgreementContractTest : public testing::TestWithParam<uint32_t> {};

TEST_P(LocalAgreementContractTest, AllRanksGetTheMinimum) {
  auto members = make_local_reducers(GetParam());
  ASSERT_EQ(members.size(), GetParam());
  auto threads = std::vector<std::jthread>{};
  for (uint32_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] {
      auto& rank = *members[i];
      EXPECT_EQ(rank.rank(), i);
      EXPECT_EQ(rank.size(), members.size());
      auto news = std::counting_semaphore<>{0};
      rank.on_notify([&news] { news.release(); });
      const auto me = std::this_thread::get_id();
      for (auto turn = 0; turn < 200; ++turn) {
        auto minima = answer{};
        rank.reduce_min(reduction_channel::step, {turn + int64_t{i}, -int64_t{i}}, [&](auto x) {
          EXPECT_EQ(std::this_thread::get_id(), me);
          minima = std::move(x);
        });
        while (!minima) {
          news.acquire();
          EXPECT_FALSE(rank.progress());
        }
        ASSERT_TRUE(minima->has_value());
        EXPECT_EQ(**minima, (std::vector<int64_t>{turn, 1 - int64_t{rank.size()}}));
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalAgreementContractTest, testing::Values(1, 2, 4));

TEST(LocalAgreementTest, OneRankKeepsTheContract) {
  auto members = make_local_reducers(1);
  test::expect_reducer_contract(*members[0], [] { FAIL() << "one rank never waits"; });
}

TEST(LocalAgreementTest, TheLastRankToEnterIsAnsweredAtOnceAndTheOthersGetNews) {
  auto members = make_local_reducers(3);
  auto answers = std::array<answer, 3>{};
  auto news = std::vector<uint32_t>{};
  for (uint32_t i = 0; i < 3; ++i)
    members[i]->on_notify([&news, i] { news.push_back(i); });
  const auto enter = [&](uint32_t i) {
    members[i]->reduce_min(reduction_channel::step, {int64_t{i}}, into(answers[i]));
  };
  enter(2);
  enter(0);
  EXPECT_FALSE(members[2]->progress()) << "calling it again ends nothing";
  EXPECT_TRUE(news.empty());
  enter(1);
  EXPECT_TRUE(answers[1]);
  EXPECT_EQ(news, (std::vector<uint32_t>{0, 2}));
  EXPECT_FALSE(answers[0] || answers[2]) << "they have not looked yet";
  members[0]->progress();
  EXPECT_TRUE(answers[0] && !answers[2]);
  members[2]->progress();
  ASSERT_TRUE(answers[2] && *answers[2]);
  EXPECT_EQ((*answers[2])->at(0), 0);
}

TEST(LocalAgreementTest, NamesExactlyTheRanksThatAreMissing) {
  auto members = make_local_reducers(4);
  members[1]->reduce_min(reduction_channel::step, {1}, [](auto) {});
  members[2]->reduce_min(reduction_channel::prefetch, {1}, [](auto) {});
  EXPECT_EQ(members[1]->missing(reduction_channel::step),
            "rank 0 has not arrived; rank 2 has not arrived; rank 3 has not arrived");
  EXPECT_EQ(members[1]->missing(reduction_channel::prefetch),
            "rank 0 has not arrived; rank 1 has not arrived; rank 3 has not arrived");
}

TEST(LocalAgreementTest, ChannelsAreIndependent) {
  auto members = make_local_reducers(2);
  auto step = std::array<answer, 2>{};
  auto prefetch = std::array<answer, 2>{};
  members[0]->reduce_min(reduction_channel::step, {1}, into(step[0]));
  members[1]->reduce_min(reduction_channel::prefetch, {2}, into(prefetch[1]));
  EXPECT_FALSE(step[0] || prefetch[1]) << "they are not the same reduction";
  members[0]->reduce_min(reduction_channel::prefetch, {3}, into(prefetch[0]));
  members[1]->reduce_min(reduction_channel::step, {4}, into(step[1]));
  members[0]->progress();
  members[1]->progress();
  ASSERT_TRUE(step[0] && step[1] && prefetch[0] && prefetch[1]);
  EXPECT_EQ((*step[0])->at(0), 1);
  EXPECT_EQ((*step[1])->at(0), 1);
  EXPECT_EQ((*prefetch[0])->at(0), 2);
  EXPECT_EQ((*prefetch[1])->at(0), 2);
}

TEST(LocalAgreementTest, UnequalLengthsFailOnEveryRankAndTheNextReductionWorks) {
  auto members = make_local_reducers(2);
  auto answers = std::array<answer, 2>{};
  members[0]->reduce_min(reduction_channel::engine, {1, 2}, into(answers[0]));
  members[1]->reduce_min(reduction_channel::engine, {1}, into(answers[1]));
  members[0]->progress();
  for (const auto& x : answers) {
    ASSERT_TRUE(x && !*x);
    EXPECT_EQ(x->error().code, ec::configuration_mismatch);
  }
  answers = {};
  members[0]->reduce_min(reduction_channel::engine, {1}, into(answers[0]));
  members[1]->reduce_min(reduction_channel::engine, {2}, into(answers[1]));
  ASSERT_TRUE(answers[1] && *answers[1]);
}

TEST(LocalAgreementTest, ADestroyedRankFailsWhatIsOutstandingAndWhatComesLater) {
  auto members = make_local_reducers(3);
  auto early = std::array<answer, 2>{};
  members[0]->reduce_min(reduction_channel::step, {1}, into(early[0]));
  members[1]->reduce_min(reduction_channel::step, {1}, into(early[1]));
  members[1].reset();
  members[0]->progress();
  ASSERT_TRUE(early[0] && !*early[0]);
  EXPECT_EQ(early[0]->error().code, ec::rank_unresponsive);
  EXPECT_NE(early[0]->error().detail.find("rank 1"), std::string::npos);
  ASSERT_TRUE(early[1] && !*early[1]) << "the one that left is answered too";
  EXPECT_EQ(early[1]->error().code, ec::stopping);
  auto late = answer{};
  members[2]->reduce_min(reduction_channel::prefetch, {1}, into(late));
  ASSERT_TRUE(late && !*late);
  EXPECT_EQ(late->error().code, ec::rank_unresponsive);
  EXPECT_FALSE(members[2]->progress());
}

TEST(LocalAgreementDeathTest, ASecondReductionOnABusyChannelIsABug) {
  auto members = make_local_reducers(2);
  members[0]->reduce_min(reduction_channel::step, {1}, [](auto) {});
  EXPECT_DEATH(members[0]->reduce_min(reduction_channel::step, {1}, [](auto) {}), "");
}

} // namespace
} // namespace hicache
