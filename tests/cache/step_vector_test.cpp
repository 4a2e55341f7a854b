// The vector whose minimum is what the ranks agree on in a step.

#include "cache/step/step_vector.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace hicache {
namespace {

/// What the ranks agree on if they offer these.
step_minima agree_on(const step_offer& a, const step_offer& b) {
  auto minimum = encode_step(a);
  const auto other = encode_step(b);
  for (auto i = size_t{0}; i < minimum.size(); ++i)
    minimum[i] = std::min(minimum[i], other[i]);
  const auto backups = std::vector<operation_id>(a.facts.backups.size());
  const auto fetches = std::vector<fetch_id>(a.facts.fetches.size());
  return decode_step(minimum, {backups, fetches, {}});
}

TEST(StepVectorTest, TheSlowestRankDecidesEachFact) {
  const auto one = step_facts{5, 2, {9, -1}, {{3, 4, miss_reason::gone}, {}}, 700};
  const auto other = step_facts{4, 3, {8, 1}, {{2, 5, miss_reason::none}, {6, 7}}, 900};
  const auto agreed = agree_on({one, 1}, {other, 1});
  EXPECT_EQ(agreed.facts, (step_facts{4, 2, {8, -1}, {{2, 4, miss_reason::gone}, {-1, 0}}, 700}));
  EXPECT_TRUE(agreed.digests_agree);
  EXPECT_FALSE(agreed.device_lost);
}

TEST(StepVectorTest, TiersOfAFetchAddUpWhateverTheRanksFound) {
  auto one = fetch_fact{.arrived = 6, .found = 6, .from_above = {2, 4, 6, 6, 6, 6, 6}};
  auto other = fetch_fact{.arrived = 4, .found = 6, .from_above = {3, 3, 4, 4, 4, 4, 4}};
  const auto agreed = agree_on({{.fetches = {one}}, 1}, {{.fetches = {other}}, 1});
  const auto expected = fetch_fact{.arrived = 4, .found = 6, .from_above = {2, 3, 4, 4, 4, 4, 4}};
  EXPECT_EQ(agreed.facts.fetches, std::vector{expected});
}

TEST(StepVectorTest, OneRankIsEnoughForAFailureOrADifference) {
  auto well = step_offer{};
  auto failed = well;
  failed.device_lost = true;
  EXPECT_TRUE(agree_on(well, failed).device_lost);
  auto other = well;
  other.digest = UINT64_MAX;
  EXPECT_FALSE(agree_on(well, other).digests_agree);
  EXPECT_FALSE(agree_on(other, well).digests_agree);
}

TEST(StepVectorTest, IsAsLongWhateverIsOpen) {
  auto full = step_facts{};
  full.backups.resize(limits::step_backups);
  full.fetches.resize(limits::step_fetches);
  for (const auto& facts : {step_facts{}, step_facts{0, 0, {1}}, step_facts{0, 0, {}, {{}}}, full})
    EXPECT_EQ(encode_step({facts}).size(), step_values);
}

TEST(StepVectorTest, DifferentNumbersOfOperationsAreADifferenceOfDigests) {
  const auto one = step_facts{5, 2, {9}, {}, 700};
  const auto other = step_facts{5, 2, {}, {{2, 5}}, 700};
  EXPECT_FALSE(agree_on({one, 1}, {other, 2}).digests_agree);
  EXPECT_FALSE(agree_on({other, 2}, {one, 1}).digests_agree);
}

TEST(StepVectorTest, TheNextStepBeginsWithTheFirstFetchThatEndedAnywhere) {
  auto one = step_facts{};
  EXPECT_EQ(agree_on({one, 1}, {one, 1}).facts.next_fetch, step_facts::no_fetch);
  one.next_fetch = 7;
  EXPECT_EQ(agree_on({one, 1}, {{}, 1}).facts.next_fetch, 7);
  auto other = one;
  other.next_fetch = 3;
  EXPECT_EQ(agree_on({one, 1}, {other, 1}).facts.next_fetch, 3);
}

TEST(StepVectorTest, TheLatestLossOfAnyRankCounts) {
  auto one = step_facts{};
  EXPECT_EQ(agree_on({one, 1}, {one, 1}).facts.loss_age_ns, step_facts::no_loss);
  one.loss_age_ns = 7;
  EXPECT_EQ(agree_on({one, 1}, {{}, 1}).facts.loss_age_ns, 7);
  auto other = one;
  other.loss_age_ns = 3;
  EXPECT_EQ(agree_on({one, 1}, {other, 1}).facts.loss_age_ns, 3);
}

TEST(StepVectorTest, TheOldestFailureEndsWhatIsDone) {
  const auto one = step_offer{.facts = {.writes_done = 9, .loads_done = 5}, .failed_write = 8};
  const auto other
    = step_offer{.facts = {.writes_done = 7, .loads_done = 6}, .failed_write = 6, .failed_load = 6};
  const auto agreed = agree_on(one, other);
  EXPECT_EQ(agreed.facts.writes_done, 6u);
  EXPECT_TRUE(agreed.facts.write_failed);
  // The load that failed on one rank is not done on the other.
  EXPECT_EQ(agreed.facts.loads_done, 5u);
  EXPECT_FALSE(agreed.facts.load_failed);
}

} // namespace
} // namespace hicache
