#include "examples/llama/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace llama {
namespace {

using namespace hicache;
using testing::ElementsAre;
using testing::SizeIs;

constexpr auto vocabulary = size_t{8};

/// A double of hicache: it has no cache, and as many pages as it is given.
class cacheless {
public:
  explicit cacheless(uint64_t free_pages) : free_(free_pages) {}

  tree_answers apply(const scheduler::operations& list) {
    auto answers = tree_answers{};
    for (const auto& each : list)
      answers.list.push_back(std::visit([this](const auto& x) { return answer(x); }, each));
    return answers;
  }

  uint64_t free_pages() const { return free_; }

private:
  tree_answer answer(const match_request&) { return match_result{}; }
  tree_answer answer(const prefetch_request&) { return prefetch_result{}; }
  tree_answer answer(const schedule_request&) { return schedule_result{true}; }
  tree_answer answer(const load_request&) {
    auto loaded = load_result{};
    loaded.progress = loading;
    return loaded;
  }
  tree_answer answer(const allocate_request& wanted) {
    const auto had = held_[wanted.request];
    const auto pages = (wanted.tokens + 3) / 4;
    if (pages - had > free_)
      return fail(ec::out_of_device_pages);
    free_ -= pages - had;
    held_[wanted.request] = pages;
    auto fresh = std::vector<page_index>(pages - wanted.known_pages);
    std::iota(fresh.begin(), fresh.end(), wanted.known_pages + 1);
    return allocate_result{std::make_shared<const std::vector<page_index>>(std::move(fresh))};
  }
  tree_answer answer(const insert_request& wanted) {
    auto inserted = insert_result{};
    inserted.l1_pages = std::make_shared<const std::vector<page_index>>(
      wanted.tokens->size() / 4 - wanted.known_pages, 7);
    return inserted;
  }
  tree_answer answer(const release_request& wanted) {
    free_ += std::exchange(held_[wanted.request], 0);
    return release_result{};
  }
  template <class T>
  tree_answer answer(const T&) {
    return fail(ec::unsupported);
  }

public:
  layer_progress_ptr loading;

private:
  uint64_t free_;
  std::map<request_id, uint64_t> held_;
};

class SchedulerTest : public testing::Test {
protected:
  scheduler make(uint64_t pass_tokens = 64) {
    auto options = scheduler_options{};
    options.page_size = 4;
    options.pass_tokens = pass_tokens;
    options.positions = 1000;
    options.end_tokens = {5};
    return scheduler{options};
  }

  static completion_request request(completion_id id, size_t prompt, uint64_t most,
                                    int32_t priority = 0) {
    return {id, std::vector<token_id>(prompt, 1), most, priority, false, {}};
  }

  /// A turn in which the model says `token`.
  /// @returns the lengths of the slices
  std::vector<size_t> turn(scheduler& tested, token_id token = 2, bool is_loaded = true,
                           const step_result& facts = {}) {
    tested.opened(cache.apply(tested.open()));
    tested.made_room(cache.apply(tested.make_room()));
    auto lengths = std::vector<size_t>{};
    auto result = pass_result{};
    for (const auto& each : tested.batch()) {
      lengths.push_back(each.tokens.size());
      if (each.wants_scores) {
        auto row = std::vector<float>(vocabulary);
        row[token] = 1;
        result.scores.insert(result.scores.end(), row.begin(), row.end());
      }
    }
    result.is_loaded = is_loaded;
    tested.computed(result, vocabulary);
    tested.inserted(cache.apply(tested.insert()));
    tested.stepped(facts);
    for (auto& output : tested.take_outputs()) {
      auto& all = tokens[output.id];
      all.insert(all.end(), output.tokens.begin(), output.tokens.end());
      if (output.finish != finish_reason::none)
        ended[output.id] = output;
    }
    return lengths;
  }

  void run(scheduler& tested) {
    for (auto turns = 0; turns < 1000 && !tested.is_idle(); ++turns)
      turn(tested);
  }

  cacheless cache{1000};
  std::map<completion_id, std::vector<token_id>> tokens;
  std::map<completion_id, completion_output> ended;
};

TEST_F(SchedulerTest, APromptIsComputedInPartsBesideDecoding) {
  auto tested = make(10);
  tested.add(request(1, 3, 4));
  tested.add(request(2, 15, 2));
  EXPECT_THAT(turn(tested), ElementsAre(3, 7));
  EXPECT_THAT(turn(tested), ElementsAre(1, 8));
  EXPECT_THAT(turn(tested), ElementsAre(1, 1));
  EXPECT_THAT(turn(tested), ElementsAre(1));
  EXPECT_THAT(tokens[1], ElementsAre(2, 2, 2, 2));
  EXPECT_EQ(ended[1].finish, finish_reason::length);
  turn(tested);
  EXPECT_TRUE(tested.is_idle());
  EXPECT_EQ(cache.free_pages(), 1000);
}

TEST_F(SchedulerTest, AnEndTokenEndsACompletion) {
  auto tested = make();
  tested.add(request(1, 3, 9));
  auto endless = request(2, 3, 3);
  endless.ignores_end = true;
  tested.add(std::move(endless));
  turn(tested, 5);
  EXPECT_EQ(ended[1].finish, finish_reason::stop);
  run(tested);
  EXPECT_EQ(ended[2].finish, finish_reason::length);
  EXPECT_THAT(tokens[2], SizeIs(3));
}

TEST_F(SchedulerTest, HigherPrioritiesRunFirst) {
  auto tested = make(8);
  tested.add(request(1, 8, 1));
  tested.add(request(2, 8, 1, 3));
  turn(tested);
  EXPECT_TRUE(ended.contains(2));
  EXPECT_FALSE(ended.contains(1));
}

TEST_F(SchedulerTest, SequencesThatDoNotFitTogetherRunOneAfterTheOther) {
  cache = cacheless{6};
  auto tested = make();
  // Each needs five pages in the end, and three at first.
  tested.add(request(1, 10, 10));
  tested.add(request(2, 10, 10));
  run(tested);
  EXPECT_THAT(tokens[1], SizeIs(10));
  EXPECT_THAT(tokens[2], SizeIs(10));
  EXPECT_EQ(ended[2].finish, finish_reason::length);
  EXPECT_EQ(cache.free_pages(), 6);
}

TEST_F(SchedulerTest, OneThatNeverFitsFailsWithASentence) {
  cache = cacheless{2};
  auto tested = make();
  tested.add(request(1, 20, 1));
  run(tested);
  EXPECT_EQ(ended[1].finish, finish_reason::failed);
  EXPECT_THAT(ended[1].error, testing::HasSubstr("--device-pages"));
  EXPECT_EQ(cache.free_pages(), 2);
}

TEST_F(SchedulerTest, NothingOfAFailedLoadIsGivenOut) {
  auto tested = make();
  tested.add(request(1, 6, 2));
  cache.loading = std::make_shared<layer_progress>(1);
  turn(tested, 3, false);
  EXPECT_THAT(tokens[1], ElementsAre());
  cache.loading = nullptr;
  run(tested);
  EXPECT_THAT(tokens[1], ElementsAre(2, 2));
}

TEST_F(SchedulerTest, ARequestThatLostItsPagesIsComputedAgain) {
  auto tested = make();
  tested.add(request(1, 6, 3));
  auto facts = step_result{};
  facts.failed = {1};
  turn(tested, 3, true, facts);
  EXPECT_THAT(turn(tested), ElementsAre(6));
  run(tested);
  EXPECT_THAT(tokens[1], ElementsAre(2, 2, 2));
}

TEST_F(SchedulerTest, AnAbortGivesAllPagesBack) {
  auto tested = make();
  tested.add(request(1, 6, 100));
  turn(tested);
  turn(tested);
  tested.abort(1);
  tested.abort(1);
  turn(tested);
  EXPECT_EQ(ended[1].finish, finish_reason::aborted);
  EXPECT_TRUE(tested.is_idle());
  EXPECT_EQ(cache.free_pages(), 1000);
}

TEST(TurnInput, ComesBackFromAMessage) {
  auto input = turn_input{};
  input.added.push_back({3, {1, 70000}, 5, -2, true, "salt"});
  input.aborted = {9};
  const auto copy = decode(encode(input));
  ASSERT_THAT(copy.added, SizeIs(1));
  EXPECT_EQ(copy.added[0].id, 3);
  EXPECT_THAT(copy.added[0].prompt, ElementsAre(1, 70000));
  EXPECT_EQ(copy.added[0].priority, -2);
  EXPECT_EQ(copy.added[0].salt, "salt");
  EXPECT_THAT(copy.aborted, ElementsAre(9));
  EXPECT_FALSE(copy.is_last);
}

} // namespace
} // namespace llama
