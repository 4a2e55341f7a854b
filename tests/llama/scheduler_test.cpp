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

/// A double of hicache: it has no cache, and as many pages as it is given. Sessions keep their
/// pages between turns, and no use is made of them.
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

  /// Turns of sessions, by the generation that each named.
  std::vector<uint64_t> turns;
  /// Tokens of each insert.
  std::vector<size_t> inserts;

private:
  tree_answer answer(const open_session_request&) { return session_result{++last_generation_}; }
  tree_answer answer(const close_session_request& unwanted) {
    free_ += std::exchange(kept_[unwanted.session.generation], 0);
    return session_result{};
  }
  tree_answer answer(const match_request& wanted) {
    if (const auto generation = wanted.session.generation) {
      turns.push_back(generation);
      free_ += std::exchange(kept_[generation], 0);
      sessions_[wanted.request] = generation;
    }
    return match_result{};
  }
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
    inserts.push_back(wanted.tokens->size());
    auto inserted = insert_result{};
    inserted.l1_pages = std::make_shared<const std::vector<page_index>>(
      wanted.tokens->size() / 4 - wanted.known_pages, 7);
    return inserted;
  }
  tree_answer answer(const release_request& wanted) {
    const auto held = std::exchange(held_[wanted.request], 0);
    const auto session = sessions_.find(wanted.request);
    (session == sessions_.end() ? free_ : kept_[session->second]) += held;
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
  /// The session of each of its requests, and pages by generation.
  std::map<request_id, uint64_t> sessions_;
  std::map<uint64_t, uint64_t> kept_;
  uint64_t last_generation_ = 0;
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

  static void add(scheduler& tested, completion_request wanted) {
    tested.take({.added = {std::move(wanted)}});
  }

  /// A turn in which the model says `token`.
  /// @returns the lengths of the slices
  std::vector<size_t> turn(scheduler& tested, token_id token = 2, bool is_loaded = true,
                           const step_result& facts = {}) {
    tested.answered(cache.apply(tested.open()));
    tested.answered(cache.apply(tested.make_room()));
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
    tested.answered(cache.apply(tested.insert()));
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
  add(tested, request(1, 3, 4));
  add(tested, request(2, 15, 2));
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
  add(tested, request(1, 3, 9));
  auto endless = request(2, 3, 3);
  endless.ignores_end = true;
  add(tested, std::move(endless));
  turn(tested, 5);
  EXPECT_EQ(ended[1].finish, finish_reason::stop);
  run(tested);
  EXPECT_EQ(ended[2].finish, finish_reason::length);
  EXPECT_THAT(tokens[2], SizeIs(3));
}

TEST_F(SchedulerTest, HigherPrioritiesRunFirst) {
  auto tested = make(8);
  add(tested, request(1, 8, 1));
  add(tested, request(2, 8, 1, 3));
  turn(tested);
  EXPECT_TRUE(ended.contains(2));
  EXPECT_FALSE(ended.contains(1));
}

TEST_F(SchedulerTest, SequencesThatDoNotFitTogetherRunOneAfterTheOther) {
  cache = cacheless{6};
  auto tested = make();
  // Each needs five pages in the end, and three at first.
  add(tested, request(1, 10, 10));
  add(tested, request(2, 10, 10));
  run(tested);
  EXPECT_THAT(tokens[1], SizeIs(10));
  EXPECT_THAT(tokens[2], SizeIs(10));
  EXPECT_EQ(ended[2].finish, finish_reason::length);
  EXPECT_EQ(cache.free_pages(), 6);
}

TEST_F(SchedulerTest, OneThatNeverFitsFailsWithASentence) {
  cache = cacheless{2};
  auto tested = make();
  add(tested, request(1, 20, 1));
  turn(tested);
  EXPECT_FALSE(tested.can_compute()) << "a step waits for copies that make room";
  run(tested);
  EXPECT_EQ(ended[1].finish, finish_reason::failed);
  EXPECT_THAT(ended[1].error, testing::HasSubstr("--device-pages"));
  EXPECT_EQ(cache.free_pages(), 2);
}

TEST_F(SchedulerTest, NothingOfAFailedLoadIsGivenOut) {
  auto tested = make();
  add(tested, request(1, 6, 2));
  cache.loading = std::make_shared<layer_progress>(1);
  turn(tested, 3, false);
  EXPECT_THAT(tokens[1], ElementsAre());
  cache.loading = nullptr;
  run(tested);
  EXPECT_THAT(tokens[1], ElementsAre(2, 2));
}

TEST_F(SchedulerTest, ARequestThatLostItsPagesIsComputedAgain) {
  auto tested = make();
  add(tested, request(1, 6, 3));
  auto facts = step_result{};
  facts.failed = {1};
  turn(tested, 3, true, facts);
  EXPECT_THAT(turn(tested), ElementsAre(6));
  run(tested);
  EXPECT_THAT(tokens[1], ElementsAre(2, 2, 2));
}

TEST_F(SchedulerTest, AnAbortGivesAllPagesBack) {
  auto tested = make();
  add(tested, request(1, 6, 100));
  turn(tested);
  turn(tested);
  tested.take({.aborted = {1}});
  tested.take({.aborted = {1}});
  turn(tested);
  EXPECT_EQ(ended[1].finish, finish_reason::aborted);
  EXPECT_TRUE(tested.is_idle());
  EXPECT_EQ(cache.free_pages(), 1000);
}

TEST_F(SchedulerTest, ItEndsOnceAllRanksHaveHeardOfIt) {
  auto tested = make();
  tested.take({{request(1, 6, 1)}, {}});
  run(tested);
  EXPECT_FALSE(tested.has_ended()) << "rank 0 may have been told to stop, others do not know";
  tested.take({{request(2, 6, 100)}, {}});
  turn(tested);
  tested.take({{request(3, 6, 100)}, {}, {}, true});
  EXPECT_FALSE(tested.has_ended()) << "one has pages";
  turn(tested);
  EXPECT_TRUE(tested.has_ended());
  for (const auto id : {2, 3})
    EXPECT_EQ(ended[completion_id(id)].finish, finish_reason::aborted);
  EXPECT_EQ(cache.free_pages(), 1000);
}

TEST_F(SchedulerTest, TurnsOfASessionFollowEachOtherAndAreInsertedToTheToken) {
  auto tested = make();
  auto first = request(1, 6, 4);
  first.session = 9;
  add(tested, first);
  auto second = request(2, 12, 1);
  second.session = 9;
  second.ends_session = true;
  add(tested, second);
  add(tested, request(3, 6, 4));
  turn(tested); // Opens the session.
  EXPECT_THAT(turn(tested), ElementsAre(1, 6)) << "the second turn waits";
  run(tested);
  EXPECT_THAT(cache.turns, ElementsAre(1, 1));
  // Of the other completion, and of one of a session before its end, whole pages.
  EXPECT_THAT(cache.inserts, ElementsAre(6, 6, 8, 8, 9, 12));
  EXPECT_THAT(tokens[2], SizeIs(1));
  EXPECT_EQ(cache.free_pages(), 1000) << "the session is closed";
}

TEST_F(SchedulerTest, ATurnOfASessionAsksNoPrefillInstance) {
  auto tested = make();
  auto wanted = request(1, 6, 4);
  wanted.session = 9;
  wanted.prefill = {"a"};
  add(tested, wanted);
  turn(tested); // Opens the session.
  EXPECT_THAT(turn(tested), ElementsAre(6));
  EXPECT_THAT(tested.list(&sequence::is_receiving), testing::IsEmpty());
}

TEST_F(SchedulerTest, ASessionStaysOpenUntilPagesAreShort) {
  cache = cacheless{8};
  auto tested = make();
  for (const auto session : {1, 2}) {
    auto added = request(completion_id(session), 8, 1);
    added.session = session_id(session);
    add(tested, added);
    run(tested);
  }
  EXPECT_EQ(cache.free_pages(), 4);
  // Five pages: the session that was used first gives way, and opens again for its next turn.
  add(tested, request(3, 20, 1));
  run(tested);
  EXPECT_EQ(ended[3].finish, finish_reason::length);
  EXPECT_EQ(cache.free_pages(), 6);
  auto next = request(4, 9, 1);
  next.session = 1;
  add(tested, next);
  run(tested);
  EXPECT_THAT(cache.turns, ElementsAre(1, 2, 3));
}

TEST(TurnInput, ComesBackFromAMessage) {
  auto input = turn_input{};
  input.added.push_back({3, {1, 70000}, 5, -2, true, "salt", 8, true});
  input.aborted = {9};
  const auto message = nlohmann::json::to_cbor(input);
  const auto copy = nlohmann::json::from_cbor(message).get<turn_input>();
  ASSERT_THAT(copy.added, SizeIs(1));
  EXPECT_EQ(copy.added[0].id, 3);
  EXPECT_THAT(copy.added[0].prompt, ElementsAre(1, 70000));
  EXPECT_EQ(copy.added[0].priority, -2);
  EXPECT_EQ(copy.added[0].salt, "salt");
  EXPECT_EQ(copy.added[0].session, 8);
  EXPECT_TRUE(copy.added[0].ends_session);
  EXPECT_THAT(copy.aborted, ElementsAre(9));
  EXPECT_FALSE(copy.is_last);
}

} // namespace
} // namespace llama
