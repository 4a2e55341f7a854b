// The vector whose minimum is what the ranks agree on in a step.

#include "cache/step_vector.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace hicache {
namespace {

/// What the ranks agree on if they offer these.
result<step_agreement> agree_on(const step_offer& a, const step_offer& b) {
  auto minimum = encode_step(a);
  const auto other = encode_step(b);
  for (auto i = size_t{0}; i < minimum.size(); ++i)
    minimum[i] = std::min(minimum[i], other[i]);
  return decode_step(minimum, a.facts);
}

TEST(StepVectorTest, TheSlowestRankDecidesEachFact) {
  const auto one = step_facts{5, 2, {9, -1}, {{3, 4, give_up::gone}, {}}, 700};
  const auto other = step_facts{4, 3, {8, 1}, {{2, 5, give_up::none}, {6, 7}}, 900};
  const auto agreed = agree_on({one, 1}, {other, 1});
  ASSERT_TRUE(agreed);
  EXPECT_EQ(agreed->facts, (step_facts{4, 2, {8, -1}, {{2, 4, give_up::gone}, {-1, 0}}, 700}));
  EXPECT_TRUE(agreed->digests_agree);
  EXPECT_FALSE(agreed->failed);
}

TEST(StepVectorTest, OneRankIsEnoughForAFailureOrADifference) {
  auto well = step_offer{};
  auto failed = well;
  failed.failed = true;
  EXPECT_TRUE(agree_on(well, failed)->failed);
  auto other = well;
  other.digest = UINT64_MAX;
  EXPECT_FALSE(agree_on(well, other)->digests_agree);
  EXPECT_FALSE(agree_on(other, well)->digests_agree);
}

TEST(StepVectorTest, AnotherLengthIsNoStep) {
  for (const auto& expected : {step_facts{0, 0, {1}}, step_facts{0, 0, {}, {{}}}})
    EXPECT_EQ(decode_step(encode_step({}), expected).error().code, ec::configuration_mismatch);
}

} // namespace
} // namespace hicache
