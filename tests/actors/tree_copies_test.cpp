// Copies that fail on one rank, and what copies wait for.

#include "base/limits.hpp"
#include "tests/actors/tree_fixture.hpp"

namespace hicache {
namespace {

using namespace hicache::test;

class TreeCopiesTest : public tree_fixture {};

// -- copies that fail ---------------------------------------------------------

TEST_F(TreeCopiesTest, AStoreThatFailsOnOneRankFailsItsPagesOnAll) {
  start(2);
  apply(whole_request(1));
  apply(whole_request(2));
  done(0, operation_kind::write, 1);
  done(1, operation_kind::write, 1, false);
  all_done(operation_kind::write, 2);
  // The failure ends the first step's part, and is news for another.
  for (auto step = 0; step < 2; ++step)
    for (const auto& answer : step_all())
      EXPECT_TRUE(answer.get()) << to_string(answer.get().error());
  EXPECT_EQ(digest(0), digest(1));
  EXPECT_EQ(counters(0).errors, 1u);
  apply({evict_request{cache_tier::l1, 64}});
  EXPECT_EQ(match(3, 1).l2_tokens, 0u);
  EXPECT_EQ(match(4, 2).l2_tokens, 8u);
  EXPECT_TRUE(ranks_[0].log->notices.empty());
}

TEST_F(TreeCopiesTest, ALoadThatFailsOnOneRankFailsItsRequestsOnAll) {
  start(2);
  for (const auto id : {1, 2}) {
    apply(whole_request(id));
    all_done(operation_kind::write, id);
    step_all();
    all_done(operation_kind::backup, id);
    step_all();
  }
  apply({evict_request{cache_tier::l1, 64}});
  for (const auto id : {3, 4}) {
    const auto loads
      = apply({match_request{request_id(id), {}, tokens(id - 2), 8}, load_request{request_id(id)}});
    ASSERT_EQ(std::get<load_result>(*loads.list.back()).loading_tokens, 8u);
  }
  all_done(operation_kind::load, 2);
  done(0, operation_kind::load, 1);
  done(1, operation_kind::load, 1, false);
  for (const auto& answer : step_all()) {
    ASSERT_TRUE(answer.get()) << to_string(answer.get().error());
    EXPECT_EQ(answer.get()->failed, std::vector<request_id>{3});
    EXPECT_TRUE(answer.get()->in_flight);
  }
  for (const auto& answer : step_all())
    EXPECT_TRUE(answer.get()->failed.empty());
  EXPECT_EQ(digest(0), digest(1));
  apply({release_request{3}, release_request{4}});
  EXPECT_EQ(match(5, 1).l1_tokens, 0u);
  EXPECT_EQ(match(6, 2).l1_tokens, 8u);
}

TEST_F(TreeCopiesTest, CopiesThatFailOneAfterTheOtherEndServingUntilAClear) {
  start(2);
  for (auto i = operation_id{1}; i <= limits::copy_failures_in_a_row; ++i) {
    apply(whole_request(i));
    done(0, operation_kind::write, i, false);
    done(1, operation_kind::write, i);
    for (const auto& answer : step_all())
      EXPECT_EQ(answer.code(), i < limits::copy_failures_in_a_row ? ec::none : ec::copy_failed);
  }
  EXPECT_EQ(ranks_[0].log->notices.size(), 1u);
  EXPECT_EQ(match(20, 1).l1_tokens, 0u);
  // What lost its copy is to be staged for L3 again, which began before serving ended.
  ASSERT_EQ(ranks_[0].log->writes.size(), limits::copy_failures_in_a_row + 1);
  all_done(operation_kind::write, limits::copy_failures_in_a_row + 1);
  step_all();
  const auto cleared = apply({release_request{20}, clear_request{}});
  ASSERT_TRUE(cleared.list.back()) << to_string(cleared.list.back().error());
  apply(whole_request(21));
  EXPECT_EQ(match(22, 21).l1_tokens, 8u);
  EXPECT_EQ(digest(0), digest(1));
  EXPECT_EQ(counters().divergences, 0u);
}

TEST_F(TreeCopiesTest, OneCopyThatSucceedsShowsThatTheDeviceIsWell) {
  start(1);
  for (auto i = operation_id{1}; i <= limits::copy_failures_in_a_row + 1; ++i) {
    apply(whole_request(i));
    done(0, operation_kind::write, i, i == 4);
    EXPECT_TRUE(step_all()[0].get());
    apply({evict_request{cache_tier::l1, 64}});
  }
}

TEST_F(TreeCopiesTest, ALostDeviceEndsServingOnAllRanks) {
  start(2);
  apply(whole_request(1));
  done(0, operation_kind::write, 1);
  tell(ranks_[1].tree, atom::done_v, operation_done{operation_kind::write, 1, false, true});
  for (const auto& answer : step_all())
    EXPECT_EQ(answer.code(), ec::copy_failed);
  EXPECT_EQ(match(2, 1).l1_tokens, 0u);
  EXPECT_EQ(digest(0), digest(1));
}

// -- events of the engine -----------------------------------------------------

/// Notes what copies have to wait for.
class noted_fences final : public page_fences {
public:
  result<void> add(std::span<const page_index> l1_pages, void* event) override {
    notes.emplace_back(event, std::vector(l1_pages.begin(), l1_pages.end()));
    return outcome;
  }

  std::vector<std::pair<void*, std::vector<page_index>>> notes;
  result<void> outcome;
};

TEST_F(TreeCopiesTest, AnEventHoldsForAllPagesThatTheRequestHad) {
  auto event = 0;
  const auto fences = std::make_shared<noted_fences>();
  fences_ = fences;
  start(1);
  apply(whole_request(1));
  // The same prompt was being computed twice: the insert frees the second one's pages.
  const auto prompt = tokens(1);
  const auto taken = apply({match_request{2, {}, prompt, 0}, allocate_request{2, 8}});
  const auto own = *std::get<allocate_result>(*taken.list.back()).l1_pages;
  const auto inserted = apply({insert_request{.request = 2, .tokens = prompt, .after = &event}});
  ASSERT_EQ(std::get<insert_result>(*inserted.list.back()).duplicate_tokens, 8u);
  ASSERT_EQ(fences->notes.size(), 1u);
  EXPECT_EQ(fences->notes[0], std::pair(static_cast<void*>(&event), own));
  apply({release_request{2, &event}});
  ASSERT_EQ(fences->notes.size(), 2u);
  EXPECT_EQ(fences->notes[1].second, *std::get<insert_result>(*inserted.list.back()).l1_pages);
}

TEST_F(TreeCopiesTest, ADeviceWithoutEventsTakesNone) {
  auto event = 0;
  start(1);
  apply({match_request{1, {}, tokens(1), 0}});
  const auto answers = apply({release_request{1, &event}, release_request{1}});
  EXPECT_EQ(answers.list[0].error().code, ec::unsupported);
  EXPECT_TRUE(answers.list[1]);
}

TEST_F(TreeCopiesTest, AnEventThatTheDeviceRefusesEndsServing) {
  auto event = 0;
  const auto fences = std::make_shared<noted_fences>();
  fences->outcome = fail(ec::copy_failed, "no such event");
  fences_ = fences;
  start(1);
  apply({match_request{1, {}, tokens(1), 0}, allocate_request{1, 8},
         insert_request{.request = 1, .tokens = tokens(1), .after = &event}});
  EXPECT_EQ(step_all()[0].code(), ec::copy_failed);
}

} // namespace
} // namespace hicache
