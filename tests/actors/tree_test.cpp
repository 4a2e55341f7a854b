// The rules of steps, with copies that finish when the test says so.

#include "base/limits.hpp"
#include "tests/actors/tree_fixture.hpp"
#include "tests/support/damage.hpp"

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

class TreeTest : public tree_fixture {};

// -- operations ---------------------------------------------------------------

TEST_F(TreeTest, AnswersEachOperationInOrder) {
  start(1);
  const auto answers = apply(whole_request(1));
  ASSERT_EQ(answers.list.size(), 4u);
  for (auto i = size_t{0}; i < 4; ++i) {
    ASSERT_TRUE(answers.list[i]) << to_string(answers.list[i].error());
    EXPECT_EQ(answers.list[i]->index(), (std::vector<size_t>{0, 4, 5, 6})[i]);
  }
  ASSERT_EQ(ranks_[0].log->writes.size(), 1u);
  EXPECT_EQ(ranks_[0].log->writes[0].l1_pages->size(), 2u);
  EXPECT_EQ(match(2, 1).l1_tokens, 8u);
}

TEST_F(TreeTest, CopiesOfATurnTravelInOneMessage) {
  start(1);
  auto both = whole_request(1);
  for (const auto& operation : whole_request(2))
    both.push_back(operation);
  apply(both);
  ASSERT_EQ(ranks_[0].log->copies.size(), 1u);
  EXPECT_EQ(ranks_[0].log->copies[0].writes.size(), 2u);
  EXPECT_TRUE(ranks_[0].log->copies[0].loads.empty());
}

TEST_F(TreeTest, FailedOperationDoesNotStopThoseBehindIt) {
  start(1);
  const auto answers = apply({release_request{9}, match_request{1, {}, tokens(1), 8}});
  ASSERT_EQ(answers.list.size(), 2u);
  ASSERT_FALSE(answers.list[0]);
  EXPECT_EQ(answers.list[0].error().code, ec::unknown_id);
  EXPECT_TRUE(answers.list[1]);
}

TEST_F(TreeTest, ReserveIsHandedOutAtTheStart) {
  start(2);
  for (const auto& rank : ranks_)
    EXPECT_EQ(rank.log->filled_staging.size(), 4u);
}

// -- steps: when they reduce and when they end --------------------------------

TEST_F(TreeTest, StepWithNothingInFlightReducesNothing) {
  start(2);
  const auto answer = send_step(0, 1s); // Answered though rank 1 does not step.
  ASSERT_TRUE(answer.get());
  EXPECT_FALSE(answer.get()->reduced);
  EXPECT_FALSE(answer.get()->in_flight);
  EXPECT_EQ(counters().reductions, 0u);
  EXPECT_EQ(counters().steps, 1u);
}

TEST_F(TreeTest, StepThatDoesNotWaitReducesAtOnce) {
  start(2);
  apply(whole_request(1));
  for (const auto& answer : step_all()) {
    ASSERT_TRUE(answer.get()) << to_string(answer.get().error());
    EXPECT_TRUE(answer.get()->reduced);
    EXPECT_TRUE(answer.get()->in_flight);
  }
  EXPECT_EQ(counters().reductions, 1u);
}

TEST_F(TreeTest, WaitingStepEndsWithNews) {
  start(2);
  apply(whole_request(1));
  const auto answers = step_all(1s);
  EXPECT_FALSE(answers[0].arrived());
  all_done(operation_kind::write, 1);
  for (const auto& answer : answers) {
    ASSERT_TRUE(answer.get());
    EXPECT_TRUE(answer.get()->in_flight); // The backup that follows on the write.
  }
  ASSERT_EQ(ranks_[1].log->backups.size(), 1u);
  EXPECT_EQ(ranks_[1].log->backups[0].names->size(), 2u);
}

TEST_F(TreeTest, BackupsLoadsAndFailuresAreNews) {
  start(1);
  apply(whole_request(1));
  all_done(operation_kind::write, 1);
  step_all();
  const auto backup = send_step(0, 1s);
  EXPECT_FALSE(backup.arrived());
  all_done(operation_kind::backup, 1);
  EXPECT_TRUE(backup.get());
  apply({match_request{2, {}, tokens(2, 64), 64}, allocate_request{2, 64}, release_request{2}});
  const auto loads = apply({match_request{3, {}, tokens(1), 8}, load_request{3}});
  ASSERT_EQ(std::get<load_result>(*loads.list.back()).loading_tokens, 8u);
  const auto load = send_step(0, 1s);
  EXPECT_FALSE(load.arrived());
  all_done(operation_kind::load, 1);
  EXPECT_TRUE(load.get());
  apply(whole_request(4));
  apply(whole_request(5));
  const auto failure = send_step(0, 1s);
  EXPECT_FALSE(failure.arrived());
  done(0, operation_kind::write, 3, false);
  EXPECT_FALSE(failure.arrived());
  done(0, operation_kind::write, 2);
  EXPECT_TRUE(failure.get());
}

TEST_F(TreeTest, NewsBeforeTheStepEndIt) {
  start(1);
  apply(whole_request(1));
  all_done(operation_kind::write, 1);
  EXPECT_TRUE(send_step(0, 1h).arrived());
}

TEST_F(TreeTest, WaitingStepEndsWhenItsTimeIsUp) {
  start(2);
  apply(whole_request(1));
  const auto answers = step_all(100ms);
  advance(99ms);
  EXPECT_FALSE(answers[0].arrived());
  advance(1ms);
  for (const auto& answer : answers) {
    ASSERT_TRUE(answer.get());
    EXPECT_TRUE(answer.get()->in_flight);
  }
}

TEST_F(TreeTest, TimersOfFormerStepsDisturbNoLaterOne) {
  start(1);
  apply(whole_request(1));
  const auto first = send_step(0, 100ms);
  all_done(operation_kind::write, 1);
  EXPECT_TRUE(first.arrived());
  const auto second = send_step(0, 1s);
  advance(100ms); // The first one's.
  EXPECT_FALSE(second.arrived());
  advance(900ms);
  EXPECT_TRUE(second.arrived());
  for (auto i = 0; i < 3; ++i) { // Nor do those of reductions that finished.
    const auto next = send_step(0, step_timeout - 1ms);
    advance(step_timeout - 2ms);
    EXPECT_FALSE(next.arrived());
    advance(1ms);
    EXPECT_TRUE(next.get());
  }
}

TEST_F(TreeTest, RankWithoutNewsTakesItsTime) {
  start(2);
  apply(whole_request(1));
  const auto answers = step_all(1s);
  done(0, operation_kind::write, 1);
  EXPECT_FALSE(answers[0].arrived());
  advance(1s);
  ASSERT_TRUE(answers[0].get());
  ASSERT_TRUE(answers[1].get());
}

TEST_F(TreeTest, CopyIsAFactWhenItIsDoneOnEveryRank) {
  start(3);
  apply(whole_request(1));
  done(0, operation_kind::write, 1);
  done(2, operation_kind::write, 1);
  step_all();
  EXPECT_TRUE(ranks_[0].log->backups.empty());
  done(1, operation_kind::write, 1);
  step_all();
  for (const auto& rank : ranks_)
    EXPECT_EQ(rank.log->backups.size(), 1u);
  all_done(operation_kind::backup, 1);
  for (const auto& answer : step_all())
    EXPECT_FALSE(answer.get()->in_flight);
  EXPECT_EQ(digest(0), digest(1));
  EXPECT_EQ(digest(0), digest(2));
}

TEST_F(TreeTest, PagesInQuarantineOnOneRankAreAgreedOnByAll) {
  start(2);
  apply(whole_request(1));
  all_done(operation_kind::write, 1);
  step_all();
  done(1, operation_kind::backup, 1);
  tell(ranks_[0].tree, atom::done_v,
       operation_done{.kind = operation_kind::backup, .id = 1, .is_in_quarantine = true});
  for (const auto& answer : step_all()) {
    EXPECT_TRUE(answer.get()->reduced);
    EXPECT_FALSE(answer.get()->in_flight); // Nothing that ends by itself.
  }
  const auto expect_quarantined = [this](uint64_t pages) {
    for (auto rank = size_t{0}; rank < 2; ++rank)
      EXPECT_EQ(counters(rank).quarantined_l2, pages);
    EXPECT_EQ(digest(0), digest(1));
  };
  expect_quarantined(2);
  done(0, operation_kind::backup, 1);
  auto reductions = 0;
  for (auto i = uint64_t{0}; i < limits::quarantine_steps; ++i)
    reductions += step_all()[1].get()->reduced ? 1 : 0;
  EXPECT_EQ(reductions, 1);
  expect_quarantined(0);
}

TEST_F(TreeTest, CopiesThatFinishOutOfOrderCountFromTheOldest) {
  start(2);
  apply(whole_request(1));
  apply(whole_request(2));
  all_done(operation_kind::write, 2);
  step_all();
  EXPECT_TRUE(ranks_[0].log->backups.empty());
  all_done(operation_kind::write, 1);
  step_all();
  EXPECT_EQ(ranks_[0].log->backups.size(), 2u);
}

TEST_F(TreeTest, SecondStepWhileOneIsOpenIsRefused) {
  start(2);
  apply(whole_request(1));
  const auto first = send_step(0);
  EXPECT_EQ(send_step(0).code(), ec::invalid_argument);
  EXPECT_FALSE(first.arrived());
  send_step(1);
  EXPECT_TRUE(first.get());
}

// -- prefetches ---------------------------------------------------------------

TEST_F(TreeTest, RequestIsReadyWithThePrefixThatEveryRankHas) {
  start(2);
  apply({match_request{1, {}, tokens(1), 8}, prefetch_request{1}, schedule_request{1}});
  ASSERT_EQ(ranks_[0].log->fetches.size(), 1u);
  const auto waiting = step_all(1s);
  const auto& reserve = ranks_[0].log->filled_staging;
  tell(ranks_[0].tree, atom::fetched_v, fetched_pages{1, pages_of({reserve[0], reserve[1]})});
  tell(ranks_[1].tree, atom::fetched_v, fetched_pages{1, pages_of({reserve[3]})});
  for (const auto& answer : waiting) {
    ASSERT_TRUE(answer.get());
    ASSERT_EQ(answer.get()->ready.size(), 1u);
    EXPECT_EQ(answer.get()->ready[0].request, 1u);
    EXPECT_EQ(answer.get()->ready[0].fetched_tokens, 4u);
  }
  EXPECT_EQ(digest(0), digest(1));
}

TEST_F(TreeTest, UnfinishedFetchOnOneRankKeepsTheRequestWaiting) {
  start(2);
  apply({match_request{1, {}, tokens(1), 8}, prefetch_request{1}, schedule_request{1}});
  tell(ranks_[0].tree, atom::fetched_v, fetched_pages{1, pages_of({})});
  const auto early = step_all();
  ASSERT_TRUE(early[0].get());
  EXPECT_TRUE(early[0].get()->ready.empty());
  EXPECT_TRUE(early[0].get()->in_flight);
  tell(ranks_[1].tree, atom::fetched_v, fetched_pages{1, pages_of({})});
  EXPECT_EQ(step_all()[1].get()->ready.size(), 1u);
}

TEST_F(TreeTest, BestEffortTellsThePrefetcherToStop) {
  start(1, prefetch_policy::best_effort);
  apply({match_request{1, {}, tokens(1), 8}, prefetch_request{1}});
  EXPECT_TRUE(ranks_[0].log->terminated.empty());
  apply({schedule_request{1}});
  EXPECT_EQ(ranks_[0].log->terminated, std::vector<fetch_id>{1});
}

// -- operations behind an open step -------------------------------------------

TEST_F(TreeTest, OperationsSentDuringAStepComeAfterIt) {
  start(2);
  apply(whole_request(1));
  all_done(operation_kind::write, 1);
  const auto early_step = send_step(0);
  const auto early = send(whole_request(2), 0);
  run();
  EXPECT_FALSE(early.arrived());
  EXPECT_EQ(ranks_[0].log->writes.size(), 1u);
  const auto late_step = send_step(1);
  const auto late = send(whole_request(2), 1);
  run();
  EXPECT_TRUE(early_step.get());
  EXPECT_TRUE(late_step.get());
  EXPECT_TRUE(early.get());
  EXPECT_TRUE(late.get());
  EXPECT_EQ(digest(0), digest(1));
  for (const auto& answer : step_all())
    EXPECT_TRUE(answer.get()) << to_string(answer.get().error());
}

TEST_F(TreeTest, OperationsSentWhileAStepIsHeldComeAfterIt) {
  start(2);
  apply(whole_request(1));
  all_done(operation_kind::write, 1);
  const auto frozen = send_request<uint64_t>(ranks_[0].tree, atom::freeze_v);
  const auto held = send_step(0);
  const auto early = send(whole_request(2), 0);
  const auto open = send_step(1);
  const auto late = send(whole_request(2), 1);
  run();
  EXPECT_EQ(*frozen.get(), 0u);
  EXPECT_FALSE(held.arrived());
  EXPECT_FALSE(early.arrived());
  tell(ranks_[0].tree, atom::abort_v);
  EXPECT_TRUE(held.get()) << to_string(held.get().error());
  EXPECT_TRUE(open.get());
  EXPECT_TRUE(early.get());
  EXPECT_TRUE(late.get());
  EXPECT_EQ(digest(0), digest(1));
}

TEST_F(TreeTest, OnlySoManyBatchesWaitBehindAStep) {
  start(2);
  apply(whole_request(1));
  send_step(0);
  auto waiting = std::vector<test::reply<tree_answers>>{};
  for (auto i = size_t{0}; i <= limits::deferred_batches; ++i)
    waiting.push_back(send({release_request{77}}, 0));
  run();
  EXPECT_EQ(waiting.back().code(), ec::limit_reached);
  EXPECT_FALSE(waiting.front().arrived());
  send_step(1);
  EXPECT_TRUE(waiting.front().get());
  EXPECT_TRUE(waiting[limits::deferred_batches - 1].get());
}

// -- ranks that do not answer -------------------------------------------------

TEST_F(TreeTest, SilentRankFailsTheStepAndTheRepeatedOneSucceeds) {
  start(2);
  apply(whole_request(1));
  all_done(operation_kind::write, 1);
  const auto before = digest(0);
  const auto first = send_step(0);
  const auto behind = send({release_request{77}}, 0);
  advance(step_timeout - 1ms);
  EXPECT_FALSE(first.arrived());
  advance(1ms);
  EXPECT_EQ(first.code(), ec::rank_unresponsive);
  EXPECT_EQ(behind.code(), ec::rank_unresponsive);
  EXPECT_EQ(digest(0), before); // The tree is as it was.
  const auto refused = send({match_request{5, {}, tokens(1), 8}}, 0);
  run();
  EXPECT_EQ(refused.code(), ec::rank_unresponsive); // Until the step is repeated.
  const auto again = send_step(0);
  EXPECT_FALSE(again.arrived());
  const auto late = send_step(1);
  ASSERT_TRUE(again.get()) << to_string(again.get().error());
  ASSERT_TRUE(late.get());
  EXPECT_EQ(digest(0), digest(1));
  EXPECT_EQ(ranks_[0].log->backups.size(), 1u);
  EXPECT_EQ(match(6, 1).l1_tokens, 8u);
}

TEST_F(TreeTest, OutcomeThatCameLateAnswersTheRepeatedStep) {
  start(2);
  apply(whole_request(1));
  all_done(operation_kind::write, 1);
  const auto first = send_step(0);
  advance(step_timeout);
  EXPECT_EQ(first.code(), ec::rank_unresponsive);
  EXPECT_TRUE(send_step(1).get());
  EXPECT_TRUE(ranks_[0].log->backups.empty());
  ASSERT_TRUE(send_step(0).get());
  EXPECT_EQ(ranks_[0].log->backups.size(), 1u);
  EXPECT_EQ(digest(0), digest(1));
}

TEST_F(TreeTest, RepeatedStepMayTimeOutAgain) {
  start(2);
  apply(whole_request(1));
  for (auto i = 0; i < 3; ++i) {
    const auto answer = send_step(0);
    advance(step_timeout);
    EXPECT_EQ(answer.code(), ec::rank_unresponsive);
  }
  const auto answer = send_step(0);
  send_step(1);
  EXPECT_TRUE(answer.get());
  EXPECT_EQ(counters().errors, 3u);
}

TEST_F(TreeTest, LostRankFailsEveryStep) {
  start(2);
  apply(whole_request(1));
  const auto waiting = send_step(0);
  stop(ranks_[1].rank_reduction);
  EXPECT_EQ(waiting.code(), ec::rank_unresponsive);
  EXPECT_EQ(send_step(0).code(), ec::rank_unresponsive);
  EXPECT_EQ(send_step(0).code(), ec::rank_unresponsive);
}

// -- ranks that differ --------------------------------------------------------

TEST_F(TreeTest, DivergedRanksServeNoHitAnyMore) {
  start(3);
  apply(whole_request(1));
  damage(*state_of<tree_state>(ranks_[1].tree).core);
  for (const auto& answer : step_all())
    EXPECT_EQ(answer.code(), ec::ranks_diverged);
  for (auto rank = size_t{0}; rank < 3; ++rank) {
    EXPECT_EQ(counters(rank).divergences, 1u);
    ASSERT_EQ(ranks_[rank].log->notices.size(), 1u);
    EXPECT_EQ(ranks_[rank].log->notices[0].code, ec::ranks_diverged);
    const auto answer = send({match_request{2, {}, tokens(1), 8}}, rank);
    run();
    const auto found = std::get<match_result>(*answer.get()->list.front());
    EXPECT_EQ(found.l1_tokens, 0u);
    EXPECT_EQ(found.l2_tokens, 0u);
  }
}

TEST_F(TreeTest, DivergedRanksFinishTheirRequestsAlone) {
  start(2);
  apply({match_request{1, {}, tokens(1), 8}, prefetch_request{1}, schedule_request{1}});
  damage(*state_of<tree_state>(ranks_[1].tree).core);
  step_all();
  EXPECT_TRUE(send_step(0).get()); // Without rank 1.
  tell(ranks_[0].tree, atom::fetched_v, fetched_pages{1, pages_of({})});
  const auto answer = send_step(0, 1s);
  ASSERT_TRUE(answer.get());
  EXPECT_FALSE(answer.get()->reduced);
  ASSERT_EQ(answer.get()->ready.size(), 1u);
  EXPECT_EQ(answer.get()->ready[0].fetched_tokens, 0u);
  const auto rest = send(
    {load_request{1}, allocate_request{1, 8}, insert_request{1, tokens(1)}, release_request{1}}, 0);
  run();
  const auto answers = rest.get();
  ASSERT_TRUE(answers);
  for (const auto& each : answers->list)
    EXPECT_TRUE(each) << to_string(each.error());
}

TEST_F(TreeTest, DifferentNumbersOfOpenOperationsAreADivergence) {
  start(2);
  apply(whole_request(1));
  send({match_request{2, {}, tokens(2), 8}, prefetch_request{2}}, 0);
  run();
  for (const auto& answer : step_all())
    EXPECT_EQ(answer.code(), ec::ranks_diverged);
  EXPECT_EQ(counters(0).divergences, 1u);
  EXPECT_EQ(counters(1).divergences, 1u);
}

TEST_F(TreeTest, DigestsAreComparedThoughNothingIsInFlight) {
  start(2);
  for (const auto id : {1u, 2u}) {
    apply(whole_request(id));
    all_done(operation_kind::write, id);
    step_all();
    all_done(operation_kind::backup, id);
    ASSERT_FALSE(step_all()[0].get()->in_flight);
  }
  for (auto rank = size_t{0}; rank < 2; ++rank)
    send({match_request{3, {}, tokens(rank == 0 ? 1 : 2), 8}, release_request{3}}, rank);
  run();
  auto code = ec::none;
  for (auto steps = uint64_t{0}; steps < limits::steps_uncompared && code == ec::none; ++steps) {
    advance(100ms);
    const auto answers = step_all();
    code = answers[0].code();
    EXPECT_EQ(answers[1].code(), code);
  }
  EXPECT_EQ(code, ec::ranks_diverged);
}

TEST_F(TreeTest, PinsEndThoughNothingIsInFlight) {
  start(2);
  apply(whole_request(1));
  all_done(operation_kind::write, 1);
  step_all();
  all_done(operation_kind::backup, 1);
  step_all();
  const auto pinned
    = [this](size_t rank) { return state_of<tree_state>(ranks_[rank].tree).core->stats().pinned; };
  apply({pin_request{{}, tokens(1), 5s}});
  const auto before = counters().reductions;
  auto passed = caf::timespan{0};
  while (pinned(0) > 0 && passed < 10s) {
    advance(50ms);
    passed += 50ms;
    for (const auto& answer : step_all())
      ASSERT_TRUE(answer.get()) << to_string(answer.get().error());
  }
  EXPECT_GE(passed, 5s);
  EXPECT_LE(passed, 6050ms);
  EXPECT_EQ(pinned(1), 0u);
  const auto taken = counters().reductions - before;
  EXPECT_GE(taken, 5u);
  EXPECT_LE(taken, 30u) << "most steps need none";
  EXPECT_EQ(digest(0), digest(1));
}

TEST_F(TreeTest, AnyOfVeryManyFetchesMayEndFirst) {
  start(2);
  const auto many = request_id{limits::step_fetches + 2};
  for (auto id = request_id{1}; id <= many; ++id)
    apply({match_request{id, {}, tokens(static_cast<token_id>(id)), 8}, prefetch_request{id}});
  step_all();
  for (const auto& rank : ranks_)
    tell(rank.tree, atom::fetched_v, fetched_pages{many, pages_of({})});
  auto ready = std::vector<ready_request>{};
  for (auto steps = 0; steps < 2 && ready.empty(); ++steps) {
    const auto news = ranks_[0].log->news;
    const auto answers = step_all();
    ready = answers[1].get()->ready;
    EXPECT_EQ(ranks_[0].log->news, news + (ready.empty() ? 1 : 0))
      << "an engine that sleeps must step again";
  }
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].request, many);
  EXPECT_EQ(digest(0), digest(1));
}

} // namespace
} // namespace hicache
