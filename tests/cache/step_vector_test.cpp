// The vector whose minimum is what the ranks agree on in a step.

#include "cache/step_vector.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace hicache {
namespace {

/// What the ranks agree on if they offer these.
result<step_agreement> agree_on(const step_offer& a, const step_offer& b, size_t fetches) {
  auto minimum = encode_step(a);
  const auto other = encode_step(b);
  for (auto i = size_t{0}; i < minimum.size(); ++i)
    minimum[i] = std::min(minimum[i], other[i]);
  return decode_step(minimum, fetches);
}

TEST(StepVectorTest, TheSlowestRankDecidesEachFact) {
  const auto agreed
    = agree_on({5, 2, 9, 700, 1, false, {3, -1}}, {4, 3, 8, 900, 1, false, {2, 6}}, 2);
  ASSERT_TRUE(agreed);
  EXPECT_EQ(agreed->facts.writes_done, 4u);
  EXPECT_EQ(agreed->facts.loads_done, 2u);
  EXPECT_EQ(agreed->facts.backups_done, 8u);
  EXPECT_EQ(agreed->facts.now_ns, 700);
  EXPECT_EQ(agreed->facts.fetched, (std::vector<int64_t>{2, -1}));
  EXPECT_TRUE(agreed->digests_agree);
  EXPECT_FALSE(agreed->failed);
}

TEST(StepVectorTest, OneRankIsEnoughForAFailureOrADifference) {
  auto well = step_offer{};
  auto failed = well;
  failed.failed = true;
  EXPECT_TRUE(agree_on(well, failed, 0)->failed);
  auto other = well;
  other.digest = UINT64_MAX;
  EXPECT_FALSE(agree_on(well, other, 0)->digests_agree);
  EXPECT_FALSE(agree_on(other, well, 0)->digests_agree);
}

TEST(StepVectorTest, AnotherLengthIsNoStep) {
  EXPECT_EQ(decode_step(encode_step({}), 1).error().code, ec::configuration_mismatch);
}

} // namespace
} // namespace hicache
