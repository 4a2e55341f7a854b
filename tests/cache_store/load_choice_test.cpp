// Whether pages of L3 arrive sooner than they could be computed.

#include "cache/store/load_choice.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace hicache {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto page_bytes = uint64_t{1000};

tier_names names(std::vector<std::string> list) {
  return std::make_shared<const std::vector<std::string>>(std::move(list));
}

/// Tier 0 reads a page in 1 ms, tier 1 one in 10 ms, after a start-up time of 4 ms each.
load_estimates two_tiers() {
  auto estimates = load_estimates{page_bytes};
  for (const auto pages : {10, 100}) {
    estimates.add_read(0, static_cast<uint64_t>(pages), milliseconds{4 + pages});
    estimates.add_read(1, static_cast<uint64_t>(pages), milliseconds{4 + 10 * pages});
  }
  return estimates;
}

tier_list tiers(size_t first, size_t second) {
  auto list = tier_list(first, 0);
  list.resize(first + second, 1);
  return list;
}

double ms(duration time) {
  return static_cast<double>(time.count()) / 1e6;
}

TEST(LoadChoice, LoadsAllThatArrivesSooner) {
  const auto estimates = two_tiers();
  const auto all = estimates.choose(50, nullptr, milliseconds{2});
  EXPECT_EQ(all.pages, 50u);
  EXPECT_NEAR(ms(all.load), 54, 0.01);
  EXPECT_EQ(all.compute, milliseconds{100});
  EXPECT_EQ(estimates.choose(3, nullptr, milliseconds{2}).pages, 0u) << "the start-up time";
  EXPECT_EQ(estimates.choose(5, nullptr, milliseconds{2}).pages, 5u);
  EXPECT_EQ(estimates.choose(1000, nullptr, milliseconds{1}).pages, 0u);
}

TEST(LoadChoice, LeavesATailThatTakesLongerThanToCompute) {
  const auto estimates = two_tiers();
  const auto mixed = tiers(60, 40);
  const auto choice = estimates.choose(100, &mixed, milliseconds{5});
  // Side by side with the first tier, the second one's first pages cost nothing more.
  EXPECT_EQ(choice.pages, 60u + 6u);
  EXPECT_NEAR(ms(choice.load), 404, 0.01);
  EXPECT_EQ(choice.compute, milliseconds{500});
  EXPECT_EQ(estimates.choose(100, &mixed, milliseconds{11}).pages, 100u);
}

TEST(LoadChoice, TakesNothingFromATierOrForAnEngineThatIsNotMeasured) {
  auto estimates = load_estimates{page_bytes};
  EXPECT_EQ(estimates.choose(9, nullptr, milliseconds{2}),
            (load_choice{.compute = milliseconds{18}}));
  estimates.add_read(0, 9, milliseconds{1});
  EXPECT_EQ(estimates.choose(9, nullptr, duration{0}), (load_choice{.load = milliseconds{1}}));
  const auto mixed = tiers(6, 3);
  const auto choice = estimates.choose(9, &mixed, milliseconds{2});
  EXPECT_EQ(choice, (load_choice{.pages = 6, .compute = milliseconds{18}}));
  EXPECT_EQ(estimates.slowest(18), milliseconds{2});
}

TEST(LoadChoice, ForgetsWhenL3HasOtherTiers) {
  auto estimates = two_tiers();
  estimates.set_tiers(names({"memory", "disk"}));
  EXPECT_EQ(estimates.slowest(1), duration{0});
  estimates.add_read(1, 10, seconds{1});
  estimates.set_tiers(names({"memory", "disk"}));
  EXPECT_EQ(estimates.slowest(10), seconds{1});
  estimates.set_tiers(names({"memory", "redis", "disk"}));
  EXPECT_EQ(estimates.slowest(10), duration{0});
}

TEST(LoadChoice, WaitsForALookUpThatCanPay) {
  auto estimates = load_estimates{page_bytes};
  const auto is_worth = [&](uint64_t pages, duration page_compute) {
    return estimates.is_lookup_worth(pages, page_compute);
  };
  EXPECT_FALSE(is_worth(100, milliseconds{10}));
  estimates.add_lookup(100, milliseconds{20});
  EXPECT_FALSE(is_worth(100, duration{0}));
  EXPECT_TRUE(is_worth(100, milliseconds{4})) << "it costs a twentieth";
  EXPECT_FALSE(is_worth(100, milliseconds{3}));
  estimates.add_read(1, 100, milliseconds{400});
  EXPECT_FALSE(is_worth(100, milliseconds{3}));
  estimates.add_read(0, 100, milliseconds{200});
  EXPECT_TRUE(is_worth(100, milliseconds{3})) << "reads may save more";
  estimates.forget();
  EXPECT_FALSE(is_worth(100, seconds{1}));
}

TEST(ReadTimer, CountsEachTierFromTheBeginning) {
  const auto at = [](milliseconds time) { return time_point{time}; };
  auto timer = read_timer{};
  timer.begin(at(milliseconds{100}));
  timer.add(1, 3, at(milliseconds{130}));
  timer.add(0, 4, at(milliseconds{110}));
  timer.add(1, 5, at(milliseconds{140}));
  auto estimates = load_estimates{page_bytes};
  timer.report(estimates);
  const auto upper = tiers(4, 0);
  const auto lower = tiers(0, 8);
  EXPECT_EQ(estimates.choose(4, &upper, seconds{1}).load, milliseconds{10});
  EXPECT_EQ(estimates.choose(8, &lower, seconds{1}).load, milliseconds{40});
}

} // namespace
} // namespace hicache
