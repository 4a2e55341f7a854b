#include "actors/rank_reduction.hpp"
#include "base/limits.hpp"
#include "hicache/rank_reducer.hpp"
#include "tests/support/actor_test.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace hicache {
namespace {

using values = std::vector<int64_t>;

class ConsensusTest : public test::actor_test {
protected:
  ~ConsensusTest() override { stop_all(); }

  void start(uint32_t ranks) {
    for (auto& each : make_local_reducers(ranks))
      actors_.push_back(spawn(rank_reduction, std::move(each)));
  }

  test::reply<reduced> offer(size_t rank, reduction_channel channel, values xs) {
    auto answer = send_request<reduced>(actors_[rank], atom::reduce_v, reduction{channel, xs});
    run();
    return answer;
  }

  std::vector<rank_reduction_core_actor> actors_;
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
  const auto of_the_lost = offer(1, reduction_channel::step, {1});
  stop(actors_[1]);
  EXPECT_EQ(waiting.code(), ec::rank_unresponsive);
  EXPECT_EQ(of_the_lost.code(), ec::stopping);
  EXPECT_EQ(offer(2, reduction_channel::step, {1}).code(), ec::rank_unresponsive);
}

TEST_F(ConsensusTest, NamesTheRanksThatAreMissing) {
  start(3);
  const auto missing = [this](reduction_channel channel) {
    return ask_value<std::string>(actors_[0], atom::missing_v, static_cast<uint8_t>(channel));
  };
  offer(0, reduction_channel::step, {1});
  offer(2, reduction_channel::step, {1});
  EXPECT_EQ(missing(reduction_channel::step), "rank 1 has not arrived");
  EXPECT_EQ(missing(reduction_channel::prefetch), "no rank is waited for");
  offer(1, reduction_channel::step, {1});
  EXPECT_EQ(missing(reduction_channel::step), "no rank is waited for");
}

// -- an agreement that has to be polled ---------------------------------------

/// What a test and its agreement share.
struct script {
  /// Channels whose reductions may end.
  std::set<reduction_channel> ready;
  /// Entered channels, and -1 for each call of progress().
  std::vector<int> calls;

  int64_t polls() const { return std::count(calls.begin(), calls.end(), -1); }
};

/// Ends a reduction with its own values once the script allows it, in a call of progress(), as MPI
/// does.
class scripted_reducer final : public rank_reducer {
public:
  explicit scripted_reducer(script& shared) : script_(shared) {}

  uint32_t rank() const noexcept override { return 0; }

  uint32_t size() const noexcept override { return 2; }

  void reduce_min(reduction_channel channel, values xs, callback done) override {
    script_.calls.push_back(static_cast<int>(channel));
    waiting_[channel] = [xs, done] { done(xs); };
  }

  bool progress() override {
    script_.calls.push_back(-1);
    for (const auto channel : script_.ready)
      if (auto node = waiting_.extract(channel))
        node.mapped()();
    return !waiting_.empty();
  }

  void on_notify(notify_callback) override {}

  std::string missing(reduction_channel) override { return "rank 1"; }

private:
  script& script_;
  std::map<reduction_channel, std::function<void()>> waiting_;
};

class ConsensusPollingTest : public ConsensusTest {
protected:
  ConsensusPollingTest() {
    actors_.push_back(spawn(rank_reduction, std::make_unique<scripted_reducer>(shared_)));
  }

  ~ConsensusPollingTest() override { stop_all(); }

  /// How often it polled while the clock went on by `time`, in steps of `step`.
  int64_t polls_in(caf::timespan time, caf::timespan step) {
    const auto before = shared_.polls();
    for (auto passed = caf::timespan{0}; passed < time; passed += step)
      advance(step);
    return shared_.polls() - before;
  }

  script shared_;
};

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST_F(ConsensusPollingTest, WhatEndsAtOnceNeedsNoTimer) {
  shared_.ready = {reduction_channel::step};
  const auto answer = offer(0, reduction_channel::step, {7});
  ASSERT_TRUE(answer.get());
  EXPECT_EQ(answer.get()->values, values{7});
  EXPECT_EQ(shared_.polls(), 1);
  EXPECT_EQ(polls_in(milliseconds{100}, milliseconds{1}), 0);
}

TEST_F(ConsensusPollingTest, PausesForALateRankGrowWithTheTimeWaitedUpToTheLongest) {
  const auto answer = offer(0, reduction_channel::step, {7});
  EXPECT_FALSE(answer.arrived());
  const auto shortest = caf::timespan{limits::reduction_pause_min};
  const auto longest = caf::timespan{limits::reduction_pause_max};
  EXPECT_EQ(polls_in(8 * shortest, shortest), 8);
  auto gap = caf::timespan{0};
  for (auto waited = 8 * shortest; waited < std::chrono::seconds{1}; waited += shortest / 5) {
    gap += shortest / 5;
    if (polls_in(shortest / 5, shortest / 5) == 0)
      continue;
    EXPECT_LE(gap, std::min(waited / 8 + shortest, longest)) << "after " << waited.count() << " ns";
    EXPECT_GE(gap, std::min(waited / 10, longest)) << "after " << waited.count() << " ns";
    gap = caf::timespan{0};
  }
  EXPECT_EQ(polls_in(10 * longest, longest / 10), 10);
  shared_.ready = {reduction_channel::step};
  advance(longest);
  EXPECT_TRUE(answer.arrived());
  EXPECT_EQ(polls_in(10 * longest, longest / 10), 0);
}

TEST_F(ConsensusPollingTest, TheNextReductionIsLookedAfterWithoutAPauseAgain) {
  offer(0, reduction_channel::step, {7});
  advance_in_steps(milliseconds{200}, 200);
  shared_.ready = {reduction_channel::step};
  advance(limits::reduction_pause_max);
  shared_.ready.clear();
  offer(0, reduction_channel::step, {8});
  EXPECT_EQ(polls_in(limits::reduction_pause_min, limits::reduction_pause_min), 1);
}

TEST_F(ConsensusPollingTest, ARankThatWaitsForAChangeOfTheBackendHardlyPolls) {
  const auto change = offer(0, reduction_channel::admin, {1});
  EXPECT_EQ(shared_.polls(), 1);
  EXPECT_EQ(polls_in(milliseconds{1000}, milliseconds{1}), 50);
  shared_.ready = {reduction_channel::admin};
  advance(limits::admin_pause);
  EXPECT_TRUE(change.arrived());
}

TEST_F(ConsensusPollingTest, StepsAreNotHeldUpByAChangeThatIsWaitedFor) {
  const auto change = offer(0, reduction_channel::admin, {1});
  shared_.ready = {reduction_channel::step};
  for (auto i = 0; i < 10; ++i)
    EXPECT_TRUE(offer(0, reduction_channel::step, {7}).arrived());
  EXPECT_EQ(polls_in(milliseconds{200}, milliseconds{1}), 10) << "timers of the steps remain";
  shared_.ready.clear();
  const auto late = offer(0, reduction_channel::step, {7});
  shared_.ready = {reduction_channel::step};
  EXPECT_FALSE(late.arrived());
  advance(limits::reduction_pause_min);
  EXPECT_TRUE(late.arrived()) << "it does not wait for the timer of the change";
  EXPECT_EQ(polls_in(milliseconds{200}, milliseconds{1}), 10);
  EXPECT_FALSE(change.arrived());
}

TEST_F(ConsensusPollingTest, RequestsAreHeardWhileAnotherChannelSpins) {
  send_request<reduced>(actors_[0], atom::reduce_v, reduction{reduction_channel::step, {1}});
  const auto other = send_request<reduced>(actors_[0], atom::reduce_v,
                                           reduction{reduction_channel::prefetch, {2}});
  shared_.ready = {reduction_channel::prefetch};
  run();
  EXPECT_TRUE(other.arrived());
  shared_.calls.resize(3);
  EXPECT_EQ(shared_.calls, (std::vector<int>{0, -1, 1})) << "one look, then the next message";
}

} // namespace
} // namespace hicache
