// In which steps ranks agree although nothing is in flight.

#include "cache/step/comparison_pace.hpp"

#include <gtest/gtest.h>

namespace hicache {
namespace {

constexpr auto second = int64_t{1'000'000'000};

/// An instance whose steps take a given time each.
struct stepper {
  comparison_pace pace{};
  int64_t now_ns = 7 * second;
  bool has_pins = false;

  /// @returns whether the ranks agreed in it.
  bool step(int64_t time_ns) {
    now_ns += time_ns;
    pace.note_step();
    if (!pace.is_due(has_pins))
      return false;
    pace.note_agreement(now_ns);
    return true;
  }

  /// The longest time between two of the steps that agreed, of so many.
  int64_t longest(int64_t time_ns, int steps) {
    auto longest = int64_t{0};
    auto last = now_ns;
    for (auto i = 0; i < steps; ++i)
      if (step(time_ns)) {
        longest = std::max(longest, now_ns - last);
        last = now_ns;
      }
    return longest;
  }
};

TEST(ComparisonPace, NothingChangedNeedsNoAgreement) {
  auto s = stepper{};
  for (auto i = 0; i < 100; ++i)
    EXPECT_FALSE(s.step(second));
  s.pace.note_change();
  EXPECT_TRUE(s.step(1));
  for (auto i = 0; i < 100; ++i)
    EXPECT_FALSE(s.step(second));
}

TEST(ComparisonPace, PinnedRanksAgreeOnceASecondHoweverLongAStepTakes) {
  for (const auto time_ns : {second / 1000, second / 100, second / 7, second / 2, second}) {
    auto s = stepper{.has_pins = true};
    const auto longest = s.longest(time_ns, 200);
    EXPECT_GT(longest, 0);
    EXPECT_LE(longest, second) << time_ns;
  }
}

TEST(ComparisonPace, FastStepsAreCountedAndSoAreThoseThatBecomeSlow) {
  auto s = stepper{.has_pins = true};
  auto agreed = 0;
  for (auto i = 0; i < 800; ++i)
    agreed += s.step(second / 1000) ? 1 : 0;
  EXPECT_LE(agreed, 102);
  s.longest(second / 1000, 3);
  EXPECT_LE(s.longest(10 * second, 8), limits::steps_uncompared * 10 * second);
  EXPECT_EQ(s.longest(10 * second, 20), 10 * second) << "every step";
}

TEST(ComparisonPace, RanksWithOtherClocksAgreeInTheSameSteps) {
  auto a = comparison_pace{};
  auto b = comparison_pace{};
  auto now_ns = int64_t{0};
  for (auto i = 0; i < 1000; ++i) {
    now_ns += i % 13 * second / 50;
    if (i % 5 == 0) {
      a.note_change();
      b.note_change();
    }
    a.note_step();
    b.note_step();
    ASSERT_EQ(a.is_due(i % 3 == 0), b.is_due(i % 3 == 0));
    if (a.is_due(i % 3 == 0)) {
      // Only the time that they agreed on counts.
      a.note_agreement(now_ns);
      b.note_agreement(now_ns);
    }
  }
}

} // namespace
} // namespace hicache
