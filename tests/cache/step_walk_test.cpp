// What holds in every state of the step machine: random walks of one rank and of ranks in lockstep.

#include "cache/step/step_machine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using machine = step_machine;
using std::chrono::nanoseconds;

constexpr auto patience = nanoseconds{5s};

const auto minimum = machine::reduced{std::vector<int64_t>{1}};

/// Carries out what a machine decides, as the tree actor does, and checks it.
class rank_model {
public:
  explicit rank_model(uint64_t seed) : random_(seed) {}

  virtual ~rank_model() = default;

  void handle(const machine::event& what) {
    for (const auto& each : steps.handle(now, what))
      std::visit([this](const auto& x) { act(x); }, each);
    EXPECT_EQ(is_asking, steps.is_awaited());
    EXPECT_EQ(is_reducing,
              steps.phase() == step_phase::offered || steps.phase() == step_phase::expired);
    EXPECT_TRUE(waiting.empty() || is_asking);
  }

  void ask(nanoseconds wait) {
    is_asking = true;
    handle(machine::asked{wait});
  }

  /// Batches are numbered in the order of their arrival.
  void send_operations(uint64_t number) {
    const auto turn = steps.admit(false);
    if (turn && *turn == machine::turn::after_step)
      waiting.push_back(number);
    else if (turn)
      apply(number);
    else
      ++refused;
  }

  void end_reduction(const machine::reduced& outcome) {
    is_reducing = false;
    is_unsettled = outcome.minimum.has_value();
    handle(outcome);
  }

  void commit(uint64_t before) {
    changes.push_back(before);
    handle(machine::committed{before});
  }

  uint64_t pick(uint64_t count) { return random_() % count; }

  machine steps{patience};
  nanoseconds now{};
  bool is_asking = false;
  bool is_reducing = false;
  /// An outcome was not applied yet.
  bool is_unsettled = false;
  std::deque<uint64_t> waiting;
  std::deque<uint64_t> changes;
  std::optional<nanoseconds> ranks_timer;
  std::optional<std::pair<nanoseconds, uint64_t>> wait_timer;
  uint64_t refused = 0;
  uint64_t answered = 0;
  /// What happened to the cache, in order.
  std::vector<std::string> log;

protected:
  virtual machine::begun find() = 0;

  virtual machine::settled settle_now() { return {}; }

private:
  void note(const std::string& what, uint64_t number) {
    log.push_back(what + " " + std::to_string(number));
  }

  void apply(uint64_t number) {
    EXPECT_EQ(steps.phase(), step_phase::idle);
    EXPECT_GT(number, last_applied_);
    last_applied_ = number;
    note("batch", number);
  }

  void end_request() {
    EXPECT_TRUE(is_asking);
    is_asking = false;
    ++answered;
  }

  void act(const machine::begin& x) {
    EXPECT_FALSE(is_unsettled) << "an outcome is applied before the next step";
    const auto number = steps.steps_begun();
    for (auto i = size_t{0}; i < x.changes; ++i) {
      EXPECT_LE(changes.front(), number);
      note("change before", changes.front());
      changes.pop_front();
    }
    EXPECT_TRUE(changes.empty() || changes.front() > number);
    note("step", number);
    handle(find());
  }

  void act(const machine::step_locally&) {
    note("local", steps.steps_begun());
    end_request();
  }

  void act(const machine::step_alone&) {
    EXPECT_TRUE(steps.is_alone());
    end_request();
  }

  void act(const machine::set_wait_timer& x) { wait_timer.emplace(now + x.after, x.number); }

  void act(const machine::set_ranks_timer& x) {
    EXPECT_FALSE(ranks_timer);
    ranks_timer = now + x.after;
  }

  void act(const machine::offer&) {
    EXPECT_FALSE(is_reducing);
    is_reducing = true;
  }

  void act(const machine::settle&) {
    EXPECT_TRUE(is_unsettled);
    is_unsettled = false;
    note("agreed", steps.steps_begun());
    handle(settle_now());
  }

  void act(const machine::answer&) { end_request(); }

  void act(const machine::fail_step&) { end_request(); }

  void act(const machine::report_missing&) { end_request(); }

  void act(const machine::tell_engine&) {}

  void act(const machine::replay&) {
    EXPECT_FALSE(waiting.empty());
    for (const auto number : std::exchange(waiting, {}))
      if (const auto turn = steps.admit(false)) {
        EXPECT_EQ(*turn, machine::turn::now);
        apply(number);
      } else {
        ++refused;
      }
  }

  std::mt19937_64 random_;
  uint64_t last_applied_ = 0;
};

/// One rank among others that do as they like.
class erratic_rank final : public rank_model {
public:
  using rank_model::rank_model;

  void fire_timers() {
    if (wait_timer && wait_timer->first <= now)
      handle(machine::wait_over{std::exchange(wait_timer, std::nullopt)->second});
    if (ranks_timer && *ranks_timer <= now) {
      ranks_timer.reset();
      handle(machine::ranks_timer{});
    }
  }

  void one_event() {
    switch (pick(8)) {
      case 0:
        if (!steps.is_awaited())
          return ask(nanoseconds{1s} * pick(3));
        return;
      case 1:
        return handle(machine::news{});
      case 2:
        now += nanoseconds{100ms} * pick(30);
        return fire_timers();
      case 3:
        if (is_reducing)
          return end_reduction(outcome());
        return;
      case 4:
        if (!steps.is_frozen())
          return handle(machine::frozen{});
        return;
      case 5:
        if (steps.is_frozen())
          return pick(2) == 0 ? handle(machine::aborted{})
                              : commit(steps.steps_begun() + 1 + pick(2));
        return;
      default:
        return send_operations(++sent);
    }
  }

  uint64_t sent = 0;

private:
  machine::begun find() override {
    auto found = machine::begun{pick(2) == 0, pick(4) == 0, pick(4) == 0, pick(3) == 0};
    if (pick(3) == 0)
      found.next_deadline = nanoseconds{1s} * (pick(4)) - 1s;
    return found;
  }

  machine::reduced outcome() {
    switch (pick(20)) {
      case 0:
        return {fail(ec::configuration_mismatch)};
      case 1:
        return pick(10) == 0 ? machine::reduced{fail(ec::rank_unresponsive)} : minimum;
      default:
        return minimum;
    }
  }

  machine::settled settle_now() override {
    switch (pick(200)) {
      case 0:
        return {fail(ec::ranks_diverged)};
      case 1:
        return {fail(ec::copy_failed)};
      default:
        return {{}, now.count(), pick(4) == 0};
    }
  }
};

TEST(StepWalkTest, HoldsItsPromisesWhateverHappens) {
  for (auto seed = uint64_t{1}; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto rank = erratic_rank{seed};
    for (auto i = 0; i < 500 && !::testing::Test::HasFailure(); ++i)
      rank.one_event();
    // No request waits for ever.
    if (rank.steps.is_frozen())
      rank.handle(machine::aborted{});
    rank.now += 10s;
    rank.fire_timers();
    if (rank.is_reducing)
      rank.end_reduction(minimum);
    ASSERT_FALSE(::testing::Test::HasFailure());
    EXPECT_FALSE(rank.is_asking);
    EXPECT_EQ(rank.answered, rank.steps.steps_asked());
    const auto applied
      = std::ranges::count_if(rank.log, [](const auto& x) { return x.starts_with("batch"); });
    EXPECT_EQ(applied + rank.refused, rank.sent);
  }
}

/// One of some ranks whose engines issue the same operations and steps.
class lockstep_rank final : public rank_model {
public:
  using rank_model::rank_model;

  /// Does what the engine does next, if it may.
  void go_on(const std::vector<bool>& script) {
    if (next_ == script.size() || (script[next_] && is_asking))
      return;
    if (script[next_++])
      ask(nanoseconds{1s} * pick(2));
    else
      send_operations(next_);
  }

  bool is_done(const std::vector<bool>& script) const {
    return next_ == script.size() && !is_asking;
  }

  std::optional<uint64_t> frozen_at;

private:
  machine::begun find() override {
    // What is in flight follows from what was applied.
    const auto what = std::hash<std::string>{}(log.back()) + log.size();
    return {.in_flight = what % 3 != 0, .has_pins = what % 7 == 0, .has_news = pick(2) == 0};
  }

  size_t next_ = 0;
};

/// Some ranks, their reductions and changes of L3, in any order that can be.
class lockstep_instance {
public:
  explicit lockstep_instance(uint64_t seed) : random_(seed) {
    for (auto i = 0; i < 60; ++i)
      script_.push_back(random_() % 3 == 0);
    for (auto i = uint64_t{0}; i < 3; ++i)
      ranks.emplace_back(seed * 3 + i);
  }

  void run() {
    for (auto i = 0; i < 100'000 && !is_done(); ++i)
      one_event(ranks[random_() % ranks.size()]);
    EXPECT_TRUE(is_done());
  }

  std::deque<lockstep_rank> ranks;

private:
  bool is_done() const {
    return std::ranges::all_of(ranks, [this](const auto& x) { return x.is_done(script_); });
  }

  void one_event(lockstep_rank& rank) {
    switch (random_() % 6) {
      case 0:
        return rank.handle(machine::news{});
      case 1:
        if (rank.wait_timer)
          return rank.handle(
            machine::wait_over{std::exchange(rank.wait_timer, std::nullopt)->second});
        return;
      case 2:
        return end_reduction();
      case 3:
        return change_storage(rank);
      default:
        return rank.go_on(script_);
    }
  }

  /// Ends the reduction on one rank, once all have entered it.
  void end_reduction() {
    if (ending_.empty() && std::ranges::all_of(ranks, [](const auto& x) { return x.is_reducing; }))
      for (auto& each : ranks)
        ending_.push_back(&each);
    if (ending_.empty())
      return;
    std::swap(ending_[random_() % ending_.size()], ending_.back());
    auto* next = ending_.back();
    ending_.pop_back();
    next->end_reduction(minimum);
  }

  /// One rank does its next part of a change of L3: freezes, or commits when all have frozen.
  void change_storage(lockstep_rank& rank) {
    if (before_ == 0 && !rank.frozen_at) {
      rank.handle(machine::frozen{});
      rank.frozen_at = rank.steps.steps_begun();
      if (std::ranges::all_of(ranks, [](const auto& x) { return x.frozen_at.has_value(); }))
        for (const auto& each : ranks)
          before_ = std::max(before_, *each.frozen_at + 1);
    } else if (before_ != 0 && rank.frozen_at) {
      rank.frozen_at.reset();
      rank.commit(before_);
      if (std::ranges::none_of(ranks, [](const auto& x) { return x.frozen_at.has_value(); }))
        before_ = 0;
    }
  }

  std::mt19937_64 random_;
  /// What each engine does: true is a step, false a batch of operations.
  std::vector<bool> script_;
  std::vector<lockstep_rank*> ending_;
  uint64_t before_ = 0;
};

TEST(StepWalkTest, AllRanksSeeBatchesStepsAndChangesInOneOrder) {
  for (auto seed = uint64_t{1}; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto instance = lockstep_instance{seed};
    instance.run();
    for (const auto& each : instance.ranks)
      ASSERT_EQ(each.log, instance.ranks.front().log);
  }
}

} // namespace
} // namespace hicache
