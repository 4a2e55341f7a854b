#include "actors/consensus.hpp"
#include "tests/support/actor_test.hpp"
#include "transport/local_agreement.hpp"

namespace hicache {
namespace {

using values = std::vector<int64_t>;

class ConsensusTest : public test::actor_test {
protected:
  ~ConsensusTest() override { stop_all(); }

  void start(uint32_t ranks) {
    for (auto& each : make_local_agreements(ranks))
      actors_.push_back(spawn(consensus, std::move(each)));
  }

  test::reply<reduced> offer(size_t rank, reduction_channel channel, values xs) {
    auto answer = send_request<reduced>(actors_[rank], atom::reduce_v, reduction{channel, xs});
    run();
    return answer;
  }

  std::vector<consensus_actor> actors_;
};

TEST_F(ConsensusTest, AloneTheMinimumIsTheOffer) {
  start(1);
  const auto answer = offer(0, reduction_channel::step, {4, -2});
  ASSERT_TRUE(answer.get()) << to_string(answer.get().error());
  EXPECT_EQ(answer.get()->values, (values{4, -2}));
}

TEST_F(ConsensusTest, AllRanksHearTheMinimumOnceAllHaveOffered) {
  start(3);
  const auto a = offer(0, reduction_channel::step, {5, 1, 9});
  const auto b = offer(2, reduction_channel::step, {3, 2, 9});
  EXPECT_FALSE(a.arrived());
  EXPECT_FALSE(b.arrived());
  const auto c = offer(1, reduction_channel::step, {4, 7, 8});
  for (const auto& answer : {a, b, c}) {
    ASSERT_TRUE(answer.get());
    EXPECT_EQ(answer.get()->values, (values{3, 1, 8}));
  }
}

TEST_F(ConsensusTest, ChannelsDoNotWaitForEachOther) {
  start(2);
  const auto step = offer(0, reduction_channel::step, {1});
  const auto first = offer(0, reduction_channel::prefetch, {2});
  const auto second = offer(1, reduction_channel::prefetch, {3});
  EXPECT_FALSE(step.arrived());
  ASSERT_TRUE(first.get());
  EXPECT_EQ(first.get()->values, values{2});
  EXPECT_EQ(second.get()->values, values{2});
}

TEST_F(ConsensusTest, SecondReductionOnABusyChannelIsRefused) {
  start(2);
  const auto first = offer(0, reduction_channel::step, {1});
  const auto second = offer(0, reduction_channel::step, {2});
  EXPECT_EQ(second.code(), ec::limit_reached);
  offer(1, reduction_channel::step, {5});
  ASSERT_TRUE(first.get()); // The first one is not disturbed.
  EXPECT_EQ(first.get()->values, values{1});
}

TEST_F(ConsensusTest, ChannelIsFreeAgainAfterTheAnswer) {
  start(2);
  for (auto round = int64_t{0}; round < 3; ++round) {
    const auto a = offer(0, reduction_channel::engine, {round});
    const auto b = offer(1, reduction_channel::engine, {round + 1});
    ASSERT_TRUE(a.get());
    EXPECT_EQ(a.get()->values, values{round});
    EXPECT_EQ(b.get()->values, values{round});
  }
}

TEST_F(ConsensusTest, FailureReachesEveryRank) {
  start(2);
  const auto a = offer(0, reduction_channel::step, {1});
  const auto b = offer(1, reduction_channel::step, {1, 2});
  EXPECT_EQ(a.code(), ec::configuration_mismatch);
  EXPECT_EQ(b.code(), ec::configuration_mismatch);
}

TEST_F(ConsensusTest, LostRankFailsThoseThatWaitAndThoseThatCome) {
  start(3);
  const auto waiting = offer(0, reduction_channel::step, {1});
  stop(actors_[1]);
  EXPECT_EQ(waiting.code(), ec::rank_unresponsive);
  EXPECT_EQ(offer(2, reduction_channel::step, {1}).code(), ec::rank_unresponsive);
}

} // namespace
} // namespace hicache
