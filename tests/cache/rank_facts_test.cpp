// What a rank brings to a step, and what it forgets after it.

#include "cache/step/copy_health.hpp"
#include "cache/step/rank_facts.hpp"

#include <gtest/gtest.h>

#include <memory>

namespace hicache {
namespace {

constexpr auto backup = operation_kind::backup;
constexpr auto write = operation_kind::write;

page_list pages(std::vector<page_index> list) {
  return std::make_shared<const std::vector<page_index>>(std::move(list));
}

class RankFactsTest : public ::testing::Test {
protected:
  step_openings open() const { return {backups_, fetches_, later_}; }

  /// A step in which all ranks offer what this one does.
  std::vector<page_list> step() {
    auto agreed = decode_step(encode_step(facts_.offer(open(), 1, 7)), open());
    EXPECT_TRUE(agreed.digests_agree);
    auto lists = facts_.take(open(), agreed.facts);
    facts_.agree(agreed);
    return lists;
  }

  bool has_news() const { return facts_.has_news(backups_); }

  std::vector<operation_id> backups_{4, 5};
  std::vector<fetch_id> fetches_{1, 2};
  std::vector<fetch_id> later_{3, 6};
  rank_facts facts_;
};

TEST_F(RankFactsTest, CopiesAreNewsWhenNoneBeforeThemIsMissing) {
  facts_.add(operation_done{write, 2});
  EXPECT_FALSE(has_news());
  facts_.add(operation_done{write, 1});
  EXPECT_TRUE(has_news());
  EXPECT_EQ(facts_.mine(open(), 9).writes_done, 2u);
  EXPECT_EQ(facts_.unchanged(2), (step_facts{.backups = {-1, -1}}));
  step();
  EXPECT_FALSE(has_news());
  EXPECT_EQ(facts_.unchanged(0), (step_facts{.writes_done = 2, .now_ns = 1}));
}

TEST_F(RankFactsTest, OffersWhatEndedInTheOrderOfWhatIsOpen) {
  facts_.add(operation_done{.kind = backup, .id = 5, .stored = 3});
  facts_.add(fetched_pages{2, pages({8, 9}), 4, miss_reason::gone});
  facts_.add(fetched_pages{6, pages({7})});
  const auto mine = facts_.mine(open(), 9);
  EXPECT_EQ(mine.backups, (std::vector<int64_t>{-1, 3}));
  EXPECT_EQ(mine.fetches, (std::vector<fetch_fact>{{}, {2, 4, miss_reason::gone}}));
  EXPECT_EQ(mine.next_fetch, 1);
  EXPECT_EQ(mine.now_ns, 9);
  const auto lists = step();
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_EQ(lists[0], nullptr);
  EXPECT_EQ(*lists[1], (std::vector<page_index>{8, 9}));
  EXPECT_TRUE(facts_.has_more(backups_)) << "the prefetch of a later step";
  EXPECT_EQ(facts_.mine(open(), 9).backups, (std::vector<int64_t>{-1, -1})) << "it is forgotten";
}

TEST_F(RankFactsTest, TellsTheTiersAndEstimatesOfAFetch) {
  const auto names = std::make_shared<const std::vector<std::string>>(
    std::vector<std::string>{"memory", "disk", "s3"});
  facts_.add(fetched_pages{.id = 1,
                           .l2_pages = pages({5, 6, 7, 8}),
                           .found = 6,
                           .by_tier = {1, 0, 3},
                           .tiers = names,
                           .load_estimate = duration{70},
                           .compute_estimate = duration{90}});
  auto mine = facts_.mine(open(), 9);
  EXPECT_EQ(mine.fetches[0].from_above, (std::array<int64_t, 7>{1, 1, 4, 4, 4, 4, 4}));
  auto unknown = mine;
  auto copy = facts_;
  copy.take(open(), mine);
  EXPECT_EQ(mine.fetches[0].load_ns, 70);
  EXPECT_EQ(mine.fetches[0].compute_ns, 90);
  EXPECT_EQ(mine.fetches[0].tiers, names);
  unknown.fetches[0].found = 0; // On another rank.
  facts_.take(open(), unknown);
  EXPECT_EQ(unknown.fetches[0].load_ns, 0);
  EXPECT_EQ(unknown.fetches[0].compute_ns, 0);
}

TEST_F(RankFactsTest, KeepsWhatOtherRanksHaveNotFinished) {
  facts_.add(operation_done{.kind = backup, .id = 4, .stored = 3});
  facts_.add(fetched_pages{1, pages({8})});
  auto none = step_facts{.backups = {-1, -1}, .fetches = {{}, {}}};
  EXPECT_EQ(facts_.take(open(), none), (std::vector<page_list>{nullptr, nullptr}));
  EXPECT_EQ(facts_.mine(open(), 9).backups[0], 3);
  EXPECT_EQ(facts_.mine(open(), 9).fetches[0].arrived, 1);
}

TEST_F(RankFactsTest, ABackupInQuarantineIsNewsTwice) {
  facts_.add(operation_done{.kind = backup, .id = 4, .is_in_quarantine = true});
  EXPECT_TRUE(has_news());
  step();
  EXPECT_FALSE(has_news());
  facts_.add(operation_done{.kind = backup, .id = 4, .stored = 0});
  EXPECT_TRUE(has_news());
  step();
  EXPECT_FALSE(has_news());
}

TEST_F(RankFactsTest, TheAgeOfTheLatestLossGrowsWithTheClock) {
  const auto at = [](int64_t ns) { return time_point{duration{ns}}; };
  EXPECT_EQ(facts_.mine(open(), 100).loss_age_ns, step_facts::no_loss);
  facts_.add(operation_done{.kind = backup, .id = 4, .lost = at(40)});
  facts_.add(operation_done{.kind = backup, .id = 5, .lost = at(30)});
  EXPECT_EQ(facts_.mine(open(), 100).loss_age_ns, 60);
  step();
  EXPECT_EQ(facts_.mine(open(), 150).loss_age_ns, 110);
  EXPECT_EQ(facts_.unchanged(0).loss_age_ns, step_facts::no_loss);
}

TEST_F(RankFactsTest, AFailureEndsTheCountAndLeavesTheRestToTheNextStep) {
  facts_.add(operation_done{write, 1, false});
  facts_.add(operation_done{write, 2});
  EXPECT_EQ(facts_.offer(open(), 1, 7).failed_write, 1u);
  step();
  EXPECT_TRUE(facts_.has_more(backups_));
  EXPECT_EQ(facts_.offer(open(), 1, 7).failed_write, 0u);
  EXPECT_EQ(facts_.unchanged(0).writes_done, 1u);
  step();
  EXPECT_FALSE(facts_.has_more(backups_));
  EXPECT_EQ(facts_.unchanged(0).writes_done, 2u);
}

TEST_F(RankFactsTest, ALostDeviceIsNewsUntilAllKnow) {
  facts_.lose_device();
  EXPECT_TRUE(has_news());
  EXPECT_TRUE(facts_.offer(open(), 1, 7).device_lost);
  step();
  EXPECT_FALSE(has_news());
}

TEST(CopyHealthTest, CountsFailuresUntilACopySucceeds) {
  auto health = copy_health{};
  auto failed = step_minima{};
  failed.facts.write_failed = true;
  for (auto i = uint32_t{1}; i < limits::copy_failures_in_a_row; ++i)
    EXPECT_EQ(health.note(failed, 1), nullptr);
  EXPECT_EQ(health.note(failed, 2), nullptr) << "one of the two succeeded";
  for (auto i = uint32_t{2}; i < limits::copy_failures_in_a_row; ++i)
    EXPECT_EQ(health.note(failed, 1), nullptr);
  EXPECT_NE(health.note(failed, 1), nullptr);
  EXPECT_EQ(health.note(failed, 1), nullptr) << "it is said once";
  health.reset();
  EXPECT_EQ(health.note(failed, 1), nullptr);
}

TEST(CopyHealthTest, ALostDeviceIsIllAtOnce) {
  auto health = copy_health{};
  EXPECT_NE(health.note({.facts = {}, .device_lost = true}, 0), nullptr);
}

} // namespace
} // namespace hicache
