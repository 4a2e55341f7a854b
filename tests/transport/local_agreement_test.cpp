#include "tests/transport/agreement_contract.hpp"
#include "transport/local_agreement.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <optional>
#include <thread>

namespace hicache {
namespace {

using answer = std::optional<result<std::vector<int64_t>>>;

agreement::callback into(answer& where) {
  return [&where](auto minima) {
    ASSERT_FALSE(where.has_value()) << "called twice";
    where = std::move(minima);
  };
}

/// Every rank on a thread of its own. Callbacks run on another rank's thread, so a rank that waits
/// yields the core, and what it waits for it learns through progress().
class LocalAgreementContractTest : public testing::TestWithParam<uint32_t> {};

TEST_P(LocalAgreementContractTest, AllRanksGetTheMinimum) {
  auto members = make_local_agreements(GetParam());
  ASSERT_EQ(members.size(), GetParam());
  // A callback's effects are published to its rank only by what the callback does, so each rank
  // counts under a lock of the test.
  auto answered = std::vector<std::atomic<int>>(members.size());
  auto threads = std::vector<std::jthread>{};
  for (uint32_t i = 0; i < members.size(); ++i) {
    threads.emplace_back([&, i] {
      auto& rank = *members[i];
      EXPECT_EQ(rank.rank(), i);
      EXPECT_EQ(rank.size(), members.size());
      for (auto turn = 0; turn < 200; ++turn) {
        rank.reduce_min(
          reduction_channel::step, {turn + int64_t{i}, -int64_t{i}}, [&, i](auto minima) {
            ASSERT_TRUE(minima.has_value());
            EXPECT_EQ(*minima,
                      (std::vector<int64_t>{answered[i].load(), 1 - int64_t{rank.size()}}));
            answered[i].fetch_add(1);
            answered[i].notify_all();
          });
        answered[i].wait(turn);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LocalAgreementContractTest, testing::Values(1, 2, 4));

TEST(LocalAgreementTest, OneRankKeepsTheContract) {
  auto members = make_local_agreements(1);
  test::expect_agreement_contract(*members[0], [] { FAIL() << "one rank never waits"; });
}

TEST(LocalAgreementTest, TheLastRankToEnterCallsAllInRankOrder) {
  auto members = make_local_agreements(3);
  auto called = std::vector<uint32_t>{};
  const auto enter = [&](uint32_t i) {
    members[i]->reduce_min(reduction_channel::step, {int64_t{i}}, [&called, i](auto minima) {
      ASSERT_TRUE(minima.has_value());
      EXPECT_EQ(minima->at(0), 0);
      called.push_back(i);
    });
  };
  enter(2);
  enter(0);
  EXPECT_TRUE(members[2]->progress());
  EXPECT_FALSE(members[1]->progress()) << "has not entered";
  EXPECT_TRUE(called.empty());
  enter(1);
  EXPECT_EQ(called, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_FALSE(members[2]->progress());
}

TEST(LocalAgreementTest, ChannelsAreIndependent) {
  auto members = make_local_agreements(2);
  auto step = std::array<answer, 2>{};
  auto prefetch = std::array<answer, 2>{};
  members[0]->reduce_min(reduction_channel::step, {1}, into(step[0]));
  members[1]->reduce_min(reduction_channel::prefetch, {2}, into(prefetch[1]));
  EXPECT_FALSE(step[0] || prefetch[1]) << "they are not the same reduction";
  members[0]->reduce_min(reduction_channel::prefetch, {3}, into(prefetch[0]));
  members[1]->reduce_min(reduction_channel::step, {4}, into(step[1]));
  ASSERT_TRUE(step[0] && step[1] && prefetch[0] && prefetch[1]);
  EXPECT_EQ((*step[0])->at(0), 1);
  EXPECT_EQ((*step[1])->at(0), 1);
  EXPECT_EQ((*prefetch[0])->at(0), 2);
  EXPECT_EQ((*prefetch[1])->at(0), 2);
}

TEST(LocalAgreementTest, UnequalLengthsFailOnEveryRankAndTheNextReductionWorks) {
  auto members = make_local_agreements(2);
  auto answers = std::array<answer, 2>{};
  members[0]->reduce_min(reduction_channel::engine, {1, 2}, into(answers[0]));
  members[1]->reduce_min(reduction_channel::engine, {1}, into(answers[1]));
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
  auto members = make_local_agreements(3);
  auto early = std::array<answer, 2>{};
  members[0]->reduce_min(reduction_channel::step, {1}, into(early[0]));
  members[1]->reduce_min(reduction_channel::step, {1}, into(early[1]));
  members[1].reset();
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
  auto members = make_local_agreements(2);
  members[0]->reduce_min(reduction_channel::step, {1}, [](auto) {});
  EXPECT_DEATH(members[0]->reduce_min(reduction_channel::step, {1}, [](auto) {}), "");
}

} // namespace
} // namespace hicache
