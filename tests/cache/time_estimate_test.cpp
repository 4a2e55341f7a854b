// How long work of a size takes, from samples; and how fast an engine computes.

#include "cache/step/prefill_watch.hpp"
#include "cache/step/time_estimate.hpp"

#include <gtest/gtest.h>

#include <random>

namespace hicache {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST(TimeEstimate, FindsStartUpTimeAndSpeed) {
  auto estimate = time_estimate{};
  EXPECT_FALSE(estimate.is_known());
  for (const auto size : {100, 1000, 10, 500})
    estimate.add(size, milliseconds{5} + size * microseconds{20});
  EXPECT_TRUE(estimate.is_known());
  for (const auto size : {1, 50, 5000})
    EXPECT_NEAR(static_cast<double>(estimate.time_for(size).count()), 5e6 + size * 20e3, 10.0);
  EXPECT_NEAR(estimate.usual_ns_for(5000), 105e6, 10.0);
}

TEST(TimeEstimate, AssumesTheWorseWhileSizesAreAlike) {
  auto estimate = time_estimate{};
  estimate.add(100, milliseconds{10});
  estimate.add(104, milliseconds{12}); // Noise, not 0.5 ms a unit.
  EXPECT_NEAR(static_cast<double>(estimate.time_for(1).count()), 11e6, 1e5);
  EXPECT_NEAR(static_cast<double>(estimate.time_for(1020).count()), 110e6, 1e6);
  EXPECT_NEAR(estimate.usual_ns_for(1020), 11e6, 1e5);
}

TEST(TimeEstimate, KnowsNoNegativeTime) {
  auto falling = time_estimate{};
  falling.add(10, milliseconds{9});
  falling.add(100, milliseconds{3});
  EXPECT_GE(falling.time_for(1000).count(), milliseconds{3}.count());
  EXPECT_EQ(falling.usual_ns_for(1), falling.usual_ns_for(1000));
  auto steep = time_estimate{};
  steep.add(10, milliseconds{1});
  steep.add(20, milliseconds{10});
  EXPECT_GT(steep.time_for(1).count(), 0);
}

TEST(TimeEstimate, ForgetsWhatWasLongAgo) {
  auto estimate = time_estimate{};
  auto random = std::mt19937{7};
  const auto add = [&](int count, microseconds per_unit) {
    for (auto i = 0; i < count; ++i) {
      const auto size = 10 + random() % 1000;
      estimate.add(static_cast<double>(size), size * per_unit);
    }
  };
  add(100, microseconds{10});
  estimate.add(500, std::chrono::seconds{10}); // Something hung once.
  EXPECT_GT(estimate.time_for(500), milliseconds{100});
  add(80, microseconds{20});
  EXPECT_NEAR(static_cast<double>(estimate.time_for(500).count()), 10e6, 1e5);
}

TEST(TimeEstimate, WeighsSamples) {
  auto estimate = time_estimate{};
  estimate.add(10, milliseconds{8}, 700);
  estimate.add(10, milliseconds{16}, 7);
  EXPECT_NEAR(estimate.usual_ns_for(10), 8e6, 1e5);
}

class PrefillWatchTest : public ::testing::Test {
protected:
  static time_point at(milliseconds time) { return time_point{time}; }

  prefill_watch watch_;
};

TEST_F(PrefillWatchTest, MeasuresFromAllocationToInsert) {
  EXPECT_EQ(watch_.token_ns(), 0);
  watch_.allocated(1, 64, 164, at(milliseconds{5}));
  watch_.allocated(2, 0, 100, at(milliseconds{6}));
  EXPECT_EQ(watch_.token_ns(), 0);
  watch_.inserted(1, 164, 200, at(milliseconds{15}));
  EXPECT_DOUBLE_EQ(watch_.token_ns(), 1e5);
  // The next chunk begins with its own allocation.
  watch_.inserted(1, 200, 200, at(milliseconds{500}));
  EXPECT_DOUBLE_EQ(watch_.token_ns(), 1e5);
}

TEST_F(PrefillWatchTest, TokensTakeLongerTheMoreComeBeforeThem) {
  watch_.allocated(1, 0, 400, at(milliseconds{0}));
  auto now = milliseconds{0};
  for (const auto end : {100, 200, 300, 400}) {
    now += milliseconds{10 + end / 100 * 10}; // 0.15 ms a token, and 1 us more with each.
    watch_.inserted(1, static_cast<uint64_t>(end), 400, at(now));
  }
  for (const auto position : {0, 400, 10000})
    EXPECT_NEAR(watch_.token_ns(position), 150e3 + 1e3 * position, 10.0);
  // Pages of 10 tokens, the middle one at position 400.
  EXPECT_NEAR(static_cast<double>(watch_.page_time(30, 20, 10).count()), 5.5e6, 10.0);
  watch_.inserted(1, 500, 500, at(now * 2)); // Its computation has ended.
  EXPECT_NEAR(watch_.token_ns(), 150e3, 10.0);
}

TEST_F(PrefillWatchTest, DecodingAndWhatWasReleasedDoNotCount) {
  watch_.allocated(1, 0, 100, at(milliseconds{0}));
  watch_.allocated(1, 96, 110, at(milliseconds{90})); // For more tokens: the computation has begun.
  watch_.inserted(1, 110, 100, at(milliseconds{400}));
  EXPECT_EQ(watch_.token_ns(), 0);
  watch_.allocated(2, 0, 100, at(milliseconds{0}));
  watch_.released(2);
  watch_.inserted(2, 100, 100, at(milliseconds{10}));
  watch_.allocated(3, 100, 100, at(milliseconds{0}));
  watch_.inserted(3, 100, 100, at(milliseconds{10})); // All was cached.
  EXPECT_EQ(watch_.token_ns(), 0);
}

TEST_F(PrefillWatchTest, BelievesTheEngine) {
  auto told = prefill_watch{5000};
  EXPECT_DOUBLE_EQ(told.token_ns(), 2e5);
  told.allocated(1, 0, 100, at(milliseconds{0}));
  told.inserted(1, 100, 100, at(milliseconds{1000}));
  EXPECT_DOUBLE_EQ(told.token_ns(), 2e5);
}

} // namespace
} // namespace hicache
