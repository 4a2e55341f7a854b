// L3 is attached and detached while complete ranks run.

#include "tests/actors/rank_fixture.hpp"

#include <gmock/gmock.h>

#include <random>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto page_size = uint32_t{4};
constexpr auto reserve_pages = uint32_t{8};

tree_options options_with(bool attached) {
  return {.page_size = page_size,
          .l1_pages = 32,
          .l2_pages = 40,
          .prefetch_reserve_pages = reserve_pages,
          .layers = 2,
          .prefetch = {.policy = prefetch_policy::wait_complete, .threshold_tokens = 4},
          .load_back_threshold_tokens = 4,
          .storage_attached = attached,
          .storage_backend = attached ? "shared" : ""};
}

class AttachmentTest : public ::testing::Test {
protected:
  rank_world& start(uint32_t ranks, bool attached) {
    world_.emplace(ranks, options_with(attached));
    return *world_;
  }

  /// Asks rank 0, and makes steps until it has answered.
  result<atom::ok> attach(const std::string& backend) {
    const auto answer = world_->send_attach(backend);
    world_->run();
    for (auto i = 0; i < 10 && !answer.arrived(); ++i)
      world_->step();
    world_->step(); // Before this one it takes effect.
    return answer.get();
  }

  /// Opens a request and asks for its prefetch.
  uint64_t prefetch(request_id id, const tokens_t& tokens) {
    EXPECT_TRUE(
      world_->apply<match_result>(match_request{id, {}, buffer_of(tokens), tokens.size()}));
    return world_->apply<prefetch_result>(prefetch_request{id})->tokens;
  }

  void release(request_id id) { EXPECT_TRUE(world_->apply<release_result>(release_request{id})); }

  /// A request from match to release whose pages are all computed, unless they are cached.
  void compute(const tokens_t& tokens) {
    const auto id = ++last_request_;
    world_->apply<match_result>(match_request{id, {}, buffer_of(tokens), tokens.size()});
    world_->apply<schedule_result>(schedule_request{id});
    world_->apply<load_result>(load_request{id});
    EXPECT_TRUE(world_->apply<allocate_result>(allocate_request{id, tokens.size()}));
    EXPECT_TRUE(world_->apply<insert_result>(insert_request{id, buffer_of(tokens)}));
    release(id);
    world_->settle();
  }

  /// Forgets L1 and L2; how many tokens a prefetch brings after that.
  uint64_t fetched_tokens(const tokens_t& tokens) {
    EXPECT_TRUE(world_->apply<clear_result>(clear_request{}));
    const auto id = ++last_request_;
    auto brought = uint64_t{0};
    if (prefetch(id, tokens) > 0)
      for (auto i = 0; i < 10; ++i)
        for (const auto& ready : world_->step().ready)
          brought += ready.fetched_tokens;
    release(id);
    return brought;
  }

  /// Everything works, with or without a store.
  void expect_all_works(token_id seed) {
    const auto tokens = make_tokens(seed, 16);
    compute(tokens);
    EXPECT_EQ(fetched_tokens(tokens), rank_world::is_attached(*world_->ranks[0]) ? 16u : 0u);
    world_->settle();
    world_->expect_nothing_lost();
    EXPECT_TRUE(world_->log->notices.empty());
  }

  /// No step waits for a change of L3.
  void expect_steps_go_on() {
    for (const auto& each : world_->ranks)
      EXPECT_FALSE(rank_world::state_of<tree_state>(each->tree).steps->is_frozen());
  }

  std::optional<rank_world> world_;
  request_id last_request_ = 1000;
};

TEST_F(AttachmentTest, AttachesAStoreThatHasPagesAlready) {
  for (const auto ranks : {1u, 3u}) {
    SCOPED_TRACE(ranks);
    start(ranks, true);
    const auto tokens = make_tokens(1, 16);
    compute(tokens);
    EXPECT_TRUE(attach(""));
    EXPECT_EQ(fetched_tokens(tokens), 0u);
    EXPECT_TRUE(attach("shared"));
    EXPECT_EQ(fetched_tokens(tokens), 16u);
    expect_all_works(2);
  }
}

TEST_F(AttachmentTest, AttachesToAnInstanceThatHadNothing) {
  start(3, false);
  expect_all_works(1);
  EXPECT_TRUE(attach("shared"));
  expect_all_works(2);
}

TEST_F(AttachmentTest, ChangesApplyBeforeTheSameStepWhateverTheSchedule) {
  for (auto seed = uint64_t{1}; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto random = std::mt19937_64{seed};
    auto& world = start(3, false);
    auto answer = world.send_attach("shared");
    auto is_detaching = false;
    const auto expect_closed_once_detached = [&] {
      for (const auto& each : world.ranks)
        EXPECT_FALSE(is_detaching && answer.arrived() && each->stores_open > 0);
    };
    for (auto i = 0; i < 40; ++i) {
      auto events = random() % 20;
      world.run_shuffled(random, [&] {
        expect_closed_once_detached();
        return events-- > 0;
      });
      const auto steps = world.send_step();
      world.run_shuffled(random, [&] {
        expect_closed_once_detached();
        return !std::ranges::all_of(steps, [](const auto& step) { return step.arrived(); });
      });
      for (const auto& each : steps)
        ASSERT_TRUE(each.get());
      world.expect_equal_digests();
      ASSERT_FALSE(HasFailure());
      if (answer.arrived() && !is_detaching) {
        ASSERT_TRUE(answer.get());
        answer = world.send_attach("");
        is_detaching = true;
      }
    }
    world.run();
    for (auto i = 0; i < 3; ++i)
      world.step();
    EXPECT_TRUE(is_detaching && answer.get());
    expect_all_works(1);
  }
}

TEST_F(AttachmentTest, RefusesASecondStore) {
  start(3, true);
  const auto answer = attach("other");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ec::invalid_argument);
  EXPECT_THAT(answer.error().detail, HasSubstr("expected it to be detached first"));
  expect_all_works(1);
}

TEST_F(AttachmentTest, NobodyAttachesWhereARankCannot) {
  auto& world = start(3, false);
  world.on_open = [](uint32_t rank) -> result<void> {
    if (rank == 1)
      return fail(ec::io_failure, "no such cluster");
    return {};
  };
  const auto answer = attach("shared");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ec::io_failure);
  EXPECT_THAT(answer.error().detail, AllOf(HasSubstr("rank 1"), HasSubstr("no such cluster")));
  for (const auto& each : world.ranks)
    EXPECT_EQ(each->stores_open, 0u);
  expect_all_works(1);
  world.on_open = nullptr;
  EXPECT_TRUE(attach("shared"));
  expect_all_works(2);
}

TEST_F(AttachmentTest, AStoreChangesOnAllRanksWithoutAStep) {
  auto& world = start(3, true);
  const auto tokens = make_tokens(1, 16);
  compute(tokens);
  const auto answer = world.send_attach("shared", 1s, "{}");
  world.run();
  EXPECT_TRUE(answer.get()) << to_string(answer.get().error());
  for (const auto& each : world.ranks) {
    EXPECT_EQ(each->configuration, "{}");
    EXPECT_EQ(each->prepared, 0u);
    EXPECT_EQ(world.ask_value<storage_attachment>(each->attachment, atom::status_v),
              (storage_attachment{"shared", "{}", "wait_complete"}));
  }
  EXPECT_EQ(fetched_tokens(tokens), 16u);
  expect_all_works(2);
}

TEST_F(AttachmentTest, AStoreChangesNowhereIfARankCannot) {
  auto& world = start(3, true);
  world.on_open = [](uint32_t rank) -> result<void> {
    if (rank == 2)
      return fail(ec::io_failure, "no such folder");
    return {};
  };
  const auto answer = world.send_attach("shared", 1s, "{}");
  world.run();
  EXPECT_EQ(answer.code(), ec::io_failure);
  EXPECT_THAT(answer.get().error().detail, HasSubstr("rank 2: no such folder"));
  for (const auto& each : world.ranks) {
    EXPECT_EQ(each->configuration, "");
    EXPECT_EQ(each->prepared, 0u);
    EXPECT_TRUE(world.is_attached(*each));
  }
  expect_all_works(1);
}

TEST_F(AttachmentTest, DetachEndsWhatIsUnderWayAndReturnsTheReserve) {
  auto& world = start(3, true);
  const auto stored = make_tokens(1, 16);
  compute(stored);
  world.apply<clear_result>(clear_request{});
  // A backup and a prefetch, held by the storage of one rank.
  world.close_gate(1);
  const auto computed = make_tokens(2, 16);
  ASSERT_TRUE(world.apply<match_result>(match_request{1, {}, buffer_of(computed), 16}));
  ASSERT_TRUE(world.apply<allocate_result>(allocate_request{1, 16}));
  ASSERT_TRUE(world.apply<insert_result>(insert_request{1, buffer_of(computed)}));
  world.step();
  world.step();
  EXPECT_EQ(prefetch(2, stored), 16u);
  EXPECT_FALSE(world.apply<schedule_result>(schedule_request{2})->ready);
  const auto answer = world.send_attach("");
  world.run();
  auto ready = size_t{0};
  for (auto i = 0; i < 5; ++i)
    ready += world.step().ready.size();
  EXPECT_EQ(ready, 1u);
  EXPECT_FALSE(answer.arrived());
  world.open_gate(1);
  for (auto i = 0; i < 5; ++i)
    world.step();
  EXPECT_TRUE(answer.get()) << to_string(answer.get().error());
  release(1);
  release(2);
  world.settle();
  EXPECT_EQ(world.core_of(*world.ranks[0]).stats().l2_used, 4u) << "the pages computed";
  EXPECT_EQ(world.counters().errors, 0u);
  expect_all_works(3);
  EXPECT_TRUE(attach("shared"));
  expect_all_works(4);
}

TEST_F(AttachmentTest, StoresOfAllRanksStayWhereOneDoesNotDrain) {
  auto& world = start(3, true);
  const auto stored = make_tokens(1, 16);
  compute(stored);
  world.apply<clear_result>(clear_request{});
  EXPECT_EQ(prefetch(1, stored), 16u);
  world.close_gate(2);
  world.apply<clear_result>(clear_request{});
  release(1);
  world.settle();
  world.apply<clear_result>(clear_request{});
  EXPECT_EQ(prefetch(2, stored), 16u);
  const auto answer = world.send_attach("");
  world.run();
  world.step();
  for (auto i = 0; i < 8 && !answer.arrived(); ++i) {
    world.advance(250ms);
    world.step();
  }
  EXPECT_EQ(answer.code(), ec::deadline_exceeded);
  ASSERT_TRUE(answer.arrived());
  EXPECT_THAT(answer.get().error().detail, HasSubstr("rank 2: reads"));
  world.open_gate(2);
  release(2);
  world.settle();
  for (const auto& each : world.ranks)
    EXPECT_TRUE(world.is_attached(*each));
  EXPECT_EQ(fetched_tokens(stored), 16u);
  expect_all_works(3);
  EXPECT_TRUE(attach(""));
  expect_all_works(4);
}

TEST_F(AttachmentTest, ARankMayTakeItsTimeForReadsAndWritesTogether) {
  auto& world = start(3, true);
  const auto stored = make_tokens(1, 16);
  compute(stored);
  world.apply<clear_result>(clear_request{});
  const auto written = make_tokens(2, 16);
  ASSERT_TRUE(world.apply<match_result>(match_request{1, {}, buffer_of(written), 16}));
  ASSERT_TRUE(world.apply<allocate_result>(allocate_request{1, 16}));
  ASSERT_TRUE(world.apply<insert_result>(insert_request{1, buffer_of(written)}));
  world.close_gate(1);
  world.step();
  EXPECT_EQ(prefetch(2, stored), 16u);
  // Longer than the others' patience: rank 1 drains until its deadline, and not longer.
  const auto time = 4 * rank_world::patience;
  const auto answer = world.send_attach("", time);
  world.run();
  world.step();
  world.advance_in_steps(time * 9 / 10, 9);
  EXPECT_FALSE(answer.arrived());
  auto& held = world.ranks[1]->gate->held;
  const auto write = std::ranges::find(held, "set", &held_request::verb);
  ASSERT_NE(write, held.end());
  const auto kept = *write;
  held.erase(write);
  world.open_gate(1); // Reads return, the write does not.
  world.close_gate(1);
  held.push_back(kept);
  world.step();
  world.advance_in_steps(time / 5, 2);
  world.advance_in_steps(rank_world::patience, 5);
  world.step();
  EXPECT_EQ(answer.code(), ec::deadline_exceeded);
  world.open_gate(1);
  release(1);
  release(2);
  world.settle();
  expect_all_works(3);
}

TEST_F(AttachmentTest, DetachWithoutStepsIsGivenUp) {
  auto& world = start(3, true);
  const auto answer = world.send_attach("");
  world.run();
  world.advance_in_steps(2s, 4);
  EXPECT_EQ(answer.code(), ec::deadline_exceeded);
  EXPECT_THAT(answer.get().error().detail, HasSubstr("the engine makes no steps"));
  expect_all_works(1);
}

TEST_F(AttachmentTest, AnotherStoreGetsThePagesOfTheFirst) {
  auto& world = start(3, true);
  const auto tokens = make_tokens(1, 16);
  compute(tokens);
  EXPECT_EQ(world.store.objects(), 12u);
  EXPECT_TRUE(attach(""));
  EXPECT_TRUE(attach("other"));
  EXPECT_EQ(world.other_store.objects(), 0u);
  compute(tokens);
  EXPECT_EQ(world.other_store.objects(), 12u);
  EXPECT_EQ(fetched_tokens(tokens), 16u);
  EXPECT_EQ(world.store.objects(), 12u);
}

TEST_F(AttachmentTest, OneChangeAtATime) {
  auto& world = start(3, true);
  const auto first = world.send_attach("");
  const auto second = world.send_attach("");
  world.run();
  EXPECT_EQ(second.code(), ec::limit_reached);
  world.step();
  EXPECT_FALSE(first.arrived());
  world.step();
  EXPECT_TRUE(first.get());
  EXPECT_TRUE(attach("shared"));
  expect_all_works(1);
}

TEST_F(AttachmentTest, OnlyRankZeroIsAsked) {
  auto& world = start(3, false);
  const auto answer = world.ask<atom::ok>(world.ranks[1]->attachment, atom::attach_v,
                                          storage_attachment{"shared", {}, {}}, caf::timespan{1s});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ec::unsupported);
  expect_all_works(1);
}

TEST_F(AttachmentTest, TooLongAConfigurationIsRefused) {
  auto& world = start(3, false);
  const auto answer = world.ask<atom::ok>(
    world.ranks[0]->attachment, atom::attach_v,
    storage_attachment{"shared", std::string(100000, ' '), {}}, caf::timespan{1s});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ec::invalid_argument);
  EXPECT_TRUE(attach("shared"));
}

class AttachmentEndTest : public AttachmentTest {
protected:
  std::vector<test::reply<atom::ok>> send_end() {
    auto answers = std::vector<test::reply<atom::ok>>{};
    for (const auto& each : world_->ranks)
      answers.push_back(world_->send_request<atom::ok>(each->attachment, atom::abort_v));
    return answers;
  }

  static void expect_answered(const std::vector<test::reply<atom::ok>>& answers) {
    for (const auto& each : answers)
      EXPECT_TRUE(each.get()) << to_string(each.get().error());
  }
};

TEST_F(AttachmentEndTest, EndsOnAllRanks) {
  auto& world = start(3, true);
  auto answers = send_end();
  world.run();
  expect_answered(answers);
  EXPECT_EQ(attach("").error().code, ec::stopping);
  answers = send_end();
  world.run();
  expect_answered(answers);
  expect_all_works(1);
}

TEST_F(AttachmentEndTest, EndsAfterTheChangeThatIsUnderWay) {
  auto& world = start(3, true);
  const auto change = world.send_attach("");
  world.run();
  const auto answers = send_end();
  world.run();
  EXPECT_FALSE(answers[0].arrived());
  world.step();
  world.step();
  EXPECT_TRUE(change.get());
  expect_answered(answers);
  expect_all_works(1);
}

TEST_F(AttachmentEndTest, NoChangeBeginsWhileTheEndIsAnnounced) {
  auto& world = start(3, true);
  // The others have not heard of the end yet.
  const auto& rank = *world.ranks[0];
  const auto first = world.send_request<atom::ok>(rank.attachment, atom::abort_v);
  const auto change = world.send_attach("");
  const auto second = world.send_request<atom::ok>(rank.attachment, atom::abort_v);
  world.run();
  EXPECT_EQ(change.code(), ec::stopping);
  expect_answered({first, second});
  const auto answers = send_end();
  world.run();
  expect_answered(answers);
  expect_all_works(1);
}

TEST_F(AttachmentEndTest, ARankThatIsGoneFreezesNobody) {
  for (auto events = 0; events < 60; events += 3) {
    SCOPED_TRACE(std::to_string(events) + " messages after the request");
    auto& world = start(3, false);
    const auto answer = world.send_attach("shared");
    auto left = events;
    auto random = std::mt19937_64{7};
    world.run_shuffled(random, [&] { return left-- > 0; });
    caf::anon_send_exit(world.ranks[2]->rank_reduction, caf::exit_reason::kill);
    world.run();
    world.advance_in_steps(10 * rank_world::patience, 50);
    EXPECT_TRUE(answer.arrived());
    expect_steps_go_on();
    const auto answers = send_end();
    world.run();
    expect_answered(answers);
  }
}

TEST_F(AttachmentEndTest, ARankThatIsSilentFreezesNobody) {
  auto& world = start(3, false);
  world.on_open = [&world](uint32_t rank) -> result<void> {
    if (rank == 2)
      world.ranks[2]->gate->is_open = false;
    return {};
  };
  world.stop(world.ranks[2]->attachment);
  // Rank 2 waits on no channel: it has heard the request and says nothing more.
  const auto answer = world.send_attach("shared");
  world.run();
  world.advance_in_steps(4 * rank_world::patience, 20);
  EXPECT_EQ(answer.code(), ec::rank_unresponsive);
  for (auto i = 0; i < 2; ++i)
    EXPECT_EQ(world.ranks[i]->stores_open, 0u) << "rank " << i;
  world.step();
}

} // namespace
} // namespace hicache
