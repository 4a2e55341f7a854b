#include "examples/llama/scheduler.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

namespace llama {
namespace {

using namespace hicache;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr auto vocabulary = size_t{8};

/// Answers of hicache that has `cached` tokens of each prompt and all pages that anyone wants.
class plentiful {
public:
  explicit plentiful(uint64_t cached) : cached_(cached) {}

  tree_answers apply(const scheduler::operations& list) {
    auto answers = tree_answers{};
    for (const auto& each : list)
      answers.list.push_back(std::visit([this](const auto& x) { return answer(x); }, each));
    return answers;
  }

  std::vector<uint64_t> inserted;
  std::vector<request_id> released;

private:
  static page_list pages(uint64_t first, uint64_t end) {
    auto list = std::vector<page_index>(end - first);
    std::iota(list.begin(), list.end(), first + 1);
    return std::make_shared<const std::vector<page_index>>(std::move(list));
  }

  tree_answer answer(const match_request&) { return match_result{}; }
  tree_answer answer(const prefetch_request&) { return prefetch_result{}; }
  tree_answer answer(const schedule_request&) { return schedule_result{true}; }
  tree_answer answer(const load_request&) {
    auto loaded = load_result{};
    loaded.l1_tokens = cached_;
    return loaded;
  }
  tree_answer answer(const allocate_request& wanted) {
    return allocate_result{pages(wanted.known_pages, (wanted.tokens + 3) / 4)};
  }
  tree_answer answer(const insert_request& wanted) {
    inserted.push_back(wanted.tokens->size());
    auto made = insert_result{};
    made.l1_pages = pages(wanted.known_pages, wanted.tokens->size() / 4);
    return made;
  }
  tree_answer answer(const release_request& wanted) {
    released.push_back(wanted.request);
    return release_result{};
  }
  template <class T>
  tree_answer answer(const T&) {
    return hicache::fail(ec::unsupported);
  }

  uint64_t cached_;
};

class HandoffScheduleTest : public testing::Test {
protected:
  HandoffScheduleTest() {
    auto options = scheduler_options{};
    options.page_size = 4;
    options.pass_tokens = 6;
    options.positions = 1000;
    scheduler_.emplace(options);
  }

  /// A prompt of ten tokens.
  static completion_request prompt() {
    auto wanted = completion_request{};
    wanted.id = 1;
    wanted.prompt.assign(10, 1);
    wanted.max_tokens = 3;
    return wanted;
  }

  void begin() {
    scheduler_->answered(cache_.apply(scheduler_->open()));
    scheduler_->answered(cache_.apply(scheduler_->make_room()));
  }

  /// Computes a pass whose likeliest token is 2. @returns its slices' first positions
  std::vector<uint64_t> compute() {
    auto firsts = std::vector<uint64_t>{};
    auto result = pass_result{};
    for (const auto& each : scheduler_->batch()) {
      firsts.push_back(each.first);
      if (each.wants_scores) {
        auto row = std::vector<float>(vocabulary);
        row[2] = 1;
        result.scores.insert(result.scores.end(), row.begin(), row.end());
      }
    }
    if (!firsts.empty())
      scheduler_->computed(result, vocabulary);
    scheduler_->answered(cache_.apply(scheduler_->insert()));
    return firsts;
  }

  std::vector<completion_output> end() {
    scheduler_->stepped({});
    return scheduler_->take_outputs();
  }

  plentiful cache_{4};
  std::optional<scheduler> scheduler_;
};

// -- decode -------------------------------------------------------------------------

class ReceiveScheduleTest : public HandoffScheduleTest {
protected:
  ReceiveScheduleTest() {
    auto wanted = prompt();
    wanted.prefill = {"a", "b"};
    scheduler_->take({.added = {wanted}});
    begin();
  }
};

TEST_F(ReceiveScheduleTest, APrefillInstanceIsAskedForWhatIsNotCached) {
  EXPECT_THAT(compute(), IsEmpty());
  const auto outputs = end();
  ASSERT_THAT(outputs, SizeIs(1));
  EXPECT_EQ(outputs[0].attempt, 0U);
  EXPECT_EQ(outputs[0].known_pages, 1U);
  EXPECT_FALSE(scheduler_->can_compute());
  EXPECT_TRUE(scheduler_->is_idle());
  ASSERT_THAT(scheduler_->list(&sequence::is_receiving), SizeIs(1));
  EXPECT_EQ(scheduler_->list(&sequence::is_receiving)[0]->computed_tokens, 4U);
  EXPECT_THAT(scheduler_->list(&sequence::is_receiving)[0]->pages, ElementsAre(1, 2, 3));
}

TEST_F(ReceiveScheduleTest, WhatItGetsIsInsertedAndDecodedFrom) {
  end();
  scheduler_->receive(1, 7);
  EXPECT_THAT(compute(), ElementsAre(10)) << "the first token";
  EXPECT_THAT(cache_.inserted, ElementsAre(11));
  const auto outputs = end();
  ASSERT_THAT(outputs, SizeIs(1));
  EXPECT_THAT(outputs[0].tokens, ElementsAre(7, 2));
  EXPECT_EQ(outputs[0].cached_tokens, 4U);
  EXPECT_EQ(outputs[0].handed_tokens, 6U);
}

TEST_F(ReceiveScheduleTest, WhatItGetsIsInsertedAlsoIfItIsAllThatIsWanted) {
  auto wanted = prompt();
  wanted.id = 2;
  wanted.max_tokens = 1;
  wanted.prefill = {"a"};
  scheduler_->take({.added = {wanted}});
  begin();
  scheduler_->receive(2, 7);
  EXPECT_THAT(compute(), ElementsAre(10));
  EXPECT_EQ(cache_.inserted.size(), 1U);
}

TEST_F(ReceiveScheduleTest, TheNextInstanceIsAskedAndAtLastNone) {
  end();
  scheduler_->miss_handoff(1);
  const auto outputs = end();
  ASSERT_THAT(outputs, SizeIs(1));
  EXPECT_EQ(outputs[0].attempt, 1U);
  EXPECT_EQ(scheduler_->list(&sequence::is_receiving)[0]->attempt, 1U);
  scheduler_->miss_handoff(1);
  EXPECT_THAT(end(), IsEmpty());
  EXPECT_THAT(scheduler_->list(&sequence::is_receiving), IsEmpty());
  EXPECT_THAT(compute(), ElementsAre(4)) << "after what is cached";
}

TEST_F(ReceiveScheduleTest, ItsPagesAreGivenBackOnlyAfterTheReceiverIsTold) {
  scheduler_->take({.aborted = {1}});
  EXPECT_THAT(scheduler_->take_dropped(), ElementsAre(1));
  EXPECT_THAT(cache_.released, IsEmpty());
  cache_.apply(scheduler_->open());
  EXPECT_THAT(cache_.released, ElementsAre(1));
}

TEST_F(ReceiveScheduleTest, ARestartMakesLateMessagesMeanNothing) {
  scheduler_->restart_all();
  EXPECT_THAT(scheduler_->take_dropped(), ElementsAre(1));
  begin();
  ASSERT_THAT(scheduler_->list(&sequence::is_receiving), SizeIs(1));
  EXPECT_EQ(scheduler_->list(&sequence::is_receiving)[0]->attempt, 1U);
}

TEST_F(HandoffScheduleTest, LessThanAPageIsNotWorthAsking) {
  cache_ = plentiful{8};
  auto wanted = prompt();
  wanted.prefill = {"a"};
  scheduler_->take({.added = {wanted}});
  begin();
  EXPECT_THAT(compute(), ElementsAre(8));
}

// -- prefill ------------------------------------------------------------------------

class SendScheduleTest : public HandoffScheduleTest {
protected:
  SendScheduleTest() {
    auto wanted = prompt();
    wanted.max_tokens = 1;
    wanted.receiver_ranks = 2;
    wanted.receiver_pages = 1;
    scheduler_->take({.added = {wanted}});
    begin();
  }
};

TEST_F(SendScheduleTest, NothingIsComputedBeforeReceiversCanReadIt) {
  EXPECT_THAT(compute(), IsEmpty());
  EXPECT_FALSE(scheduler_->can_compute());
  EXPECT_TRUE(scheduler_->is_idle());
  const auto waiting = scheduler_->list(&sequence::awaits_receiver);
  ASSERT_THAT(waiting, SizeIs(1));
  EXPECT_EQ(waiting[0]->request.receiver_ranks, 2U);
  EXPECT_EQ(waiting[0]->request.receiver_pages, 1U);
  EXPECT_THAT(waiting[0]->request.prompt, SizeIs(10));
  scheduler_->open_handoff(1);
  EXPECT_THAT(scheduler_->list(&sequence::awaits_receiver), IsEmpty());
  EXPECT_THAT(compute(), ElementsAre(4));
}

TEST_F(SendScheduleTest, APassSaysHowMuchOfThePromptItCompletes) {
  scheduler_->open_handoff(1);
  EXPECT_THAT(scheduler_->list(&sequence::is_handed_over), IsEmpty());
  scheduler_->batch();
  ASSERT_THAT(scheduler_->list(&sequence::is_handed_over), SizeIs(1));
  EXPECT_EQ(scheduler_->list(&sequence::is_handed_over)[0]->tokens_after_pass(), 10U);
}

TEST_F(SendScheduleTest, AHandoffThatCannotBeIsASentence) {
  scheduler_->fail(1, "too long");
  const auto outputs = end();
  ASSERT_THAT(outputs, SizeIs(1));
  EXPECT_EQ(outputs[0].finish, finish_reason::failed);
  EXPECT_EQ(outputs[0].error, "too long");
}

TEST_F(SendScheduleTest, WhatWasReadMayBeInvalidAfterARestart) {
  scheduler_->open_handoff(1);
  compute();
  scheduler_->restart_all();
  const auto outputs = end();
  ASSERT_THAT(outputs, SizeIs(1));
  EXPECT_EQ(outputs[0].finish, finish_reason::failed);
}

} // namespace
} // namespace llama
