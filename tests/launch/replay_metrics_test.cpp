#include "launch/replay_metrics.hpp"
#include "tests/runtime/metrics_support.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hicache {
namespace {

using namespace hicache::test;

replay_totals sample_totals() {
  auto totals = replay_totals{};
  totals.requests = 10;
  totals.prompt_tokens = 1000;
  totals.computed_tokens = 400;
  totals.cached_l1 = 300;
  totals.cached_l2 = 200;
  totals.cached_l3 = 100;
  totals.pages_checked = 11;
  totals.mismatches = 12;
  totals.engine_errors = 13;
  for (auto why = size_t{0}; why < totals.given_up.size(); ++why)
    totals.given_up[why] = 40 + why;
  totals.cached_l3_tiers = {{"disk", 60}, {"memory", 40}};
  totals.ttft_ms = {4, 100};
  totals.step_us = {30, 30, 2'000'000};
  return totals;
}

TEST(ReplayMetricsTest, RankZeroShowsWhatTheEngineCounts) {
  auto metrics = replay_metrics{0};
  metrics.show(sample_totals());
  auto found = parse(metrics.Collect());
  const auto expected = samples{
    {R"(hicache_requests_total{rank="0"})", 10},
    {R"(hicache_prompt_tokens_total{rank="0"})", 1000},
    {R"(hicache_computed_tokens_total{rank="0"})", 400},
    {R"(hicache_cached_tokens_total{rank="0",tier="l1"})", 300},
    {R"(hicache_cached_tokens_total{rank="0",tier="l2"})", 200},
    {R"(hicache_cached_tokens_total{rank="0",tier="l3"})", 100},
    {R"(hicache_unserved_tokens_total{rank="0",reason="unavailable"})", 40},
    {R"(hicache_unserved_tokens_total{rank="0",reason="late"})", 41},
    {R"(hicache_unserved_tokens_total{rank="0",reason="failed"})", 42},
    {R"(hicache_unserved_tokens_total{rank="0",reason="copy_failed"})", 43},
    {R"(hicache_unserved_tokens_total{rank="0",reason="corrupt"})", 44},
    {R"(hicache_unserved_tokens_total{rank="0",reason="gone"})", 45},
    {R"(hicache_unserved_tokens_total{rank="0",reason="stopped"})", 46},
    {R"(hicache_unserved_tokens_total{rank="0",reason="no_room"})", 47},
    {R"(hicache_unserved_tokens_total{rank="0",reason="over_quota"})", 48},
    {R"(hicache_unserved_tokens_total{rank="0",reason="too_short"})", 49},
    {R"(hicache_unserved_tokens_total{rank="0",reason="faster_to_compute"})", 50},
    {R"(hicache_cached_l3_tokens_total{rank="0",backend="disk"})", 60},
    {R"(hicache_cached_l3_tokens_total{rank="0",backend="memory"})", 40},
    {R"(hicache_checked_pages_total{rank="0"})", 11},
    {R"(hicache_mismatched_pages_total{rank="0"})", 12},
    {R"(hicache_engine_errors_total{rank="0"})", 13},
  };
  for (const auto& [name, value] : expected)
    EXPECT_EQ(found[name], value) << name;
  std::erase_if(found,
                [](const auto& x) { return x.first.find("_seconds_") != std::string::npos; });
  EXPECT_EQ(found.size(), expected.size());
}

TEST(ReplayMetricsTest, TimesAreCountedOnceEach) {
  auto metrics = replay_metrics{0};
  auto totals = sample_totals();
  metrics.show(totals);
  metrics.show(totals);
  totals.ttft_ms.push_back(400);
  metrics.show(totals);
  const auto found = parse(metrics.Collect());
  EXPECT_EQ(found.at(R"(hicache_ttft_seconds_count{rank="0"})"), 3);
  EXPECT_DOUBLE_EQ(found.at(R"(hicache_ttft_seconds_sum{rank="0"})"), 0.504);
  EXPECT_EQ(found.at(R"(hicache_ttft_seconds_bucket{rank="0",le="0.1"})"), 2);
  EXPECT_EQ(found.at(R"(hicache_step_seconds_count{rank="0"})"), 3);
  EXPECT_EQ(found.at(R"(hicache_step_seconds_bucket{rank="0",le="0.001"})"), 2);
  EXPECT_EQ(found.at(R"(hicache_step_seconds_bucket{rank="0",le="+Inf"})"), 3);
}

TEST(ReplayMetricsTest, OtherRanksShowTheirOwnAlone) {
  auto metrics = replay_metrics{1};
  metrics.show(sample_totals());
  const auto found = parse(metrics.Collect());
  EXPECT_EQ(found.at(R"(hicache_checked_pages_total{rank="1"})"), 11);
  EXPECT_FALSE(found.contains(R"(hicache_requests_total{rank="1"})"));
  EXPECT_FALSE(found.contains(R"(hicache_ttft_seconds_count{rank="1"})"));
}

} // namespace
} // namespace hicache
