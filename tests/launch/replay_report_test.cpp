#include "launch/replay_report.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>

namespace hicache {
namespace {

std::set<std::string> keys_of(const nlohmann::json& object) {
  auto keys = std::set<std::string>{};
  for (const auto& [key, value] : object.items())
    keys.insert(key);
  return keys;
}

/// Every number differs from the others.
replay_totals sample() {
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
  totals.wall_s = 1.5;
  totals.ttft_ms = {4, 1, 3, 2};
  totals.step_us = {10};
  totals.counters = {21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34};
  totals.given_up[static_cast<size_t>(miss_reason::no_room)] = 35;
  totals.cached_l3_tiers = {{"disk", 60}, {"memory", 40}};
  totals.counters.declined_pages = 36;
  return totals;
}

TEST(QuantileTest, TakesTheNearestRank) {
  EXPECT_EQ(quantile({}, 0.5), 0);
  EXPECT_EQ(quantile({7}, 0.0), 7);
  EXPECT_EQ(quantile({7}, 0.99), 7);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.5), 2);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0.51), 3);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 1.0), 4);
  auto many = std::vector<double>(100);
  for (auto i = 0; i < 100; ++i)
    many[static_cast<size_t>(i)] = 100 - i;
  EXPECT_EQ(quantile(many, 0.99), 99);
  EXPECT_EQ(quantile(many, 0.9), 90);
}

// Scripts depend on these names.
TEST(ReplayReportTest, HasTheKeysThatWerePromised) {
  const auto report = to_json(sample(), {{"page-size", "64"}, {"dtype", "bf16"}});
  auto promised = std::set<std::string>{
    "requests", "prompt_tokens", "computed_tokens", "cached_tokens", "hit_rate", "verify",
    "ttft_ms",  "wall_s",        "bytes",           "evicted_pages", "steps",    "reductions",
    "step_us",  "divergences",   "errors",          "config"};
  const auto keys = keys_of(report);
  EXPECT_TRUE(std::includes(keys.begin(), keys.end(), promised.begin(), promised.end()))
    << report.dump(2);
  promised.insert({"storage_failures", "given_up_tokens", "backups", "interrupted",
                   "cached_tokens_l3", "declined_pages"}); // Added since.
  EXPECT_EQ(keys, promised);
  EXPECT_EQ(keys_of(report["cached_tokens"]), (std::set<std::string>{"l1", "l2", "l3"}));
  EXPECT_EQ(keys_of(report["verify"]), (std::set<std::string>{"pages_checked", "mismatches"}));
  EXPECT_EQ(keys_of(report["ttft_ms"]), (std::set<std::string>{"p50", "p90", "p99"}));
  EXPECT_EQ(keys_of(report["step_us"]), (std::set<std::string>{"p50", "p99"}));
  EXPECT_EQ(keys_of(report["bytes"]),
            (std::set<std::string>{"l1_to_l2", "l2_to_l1", "l2_to_l3", "l3_to_l2"}));
  EXPECT_EQ(keys_of(report["evicted_pages"]), (std::set<std::string>{"l1", "l2", "l3"}));
  EXPECT_EQ(report["config"]["page-size"], "64");
  EXPECT_EQ(report["config"]["dtype"], "bf16");
}

TEST(ReplayReportTest, NumbersAreUnderTheirNames) {
  const auto report = to_json(sample(), {});
  EXPECT_EQ(report["requests"], 10);
  EXPECT_EQ(report["computed_tokens"], 400);
  EXPECT_EQ(report["cached_tokens"]["l1"], 300);
  EXPECT_EQ(report["cached_tokens"]["l2"], 200);
  EXPECT_EQ(report["cached_tokens"]["l3"], 100);
  EXPECT_EQ(report["cached_tokens_l3"], (nlohmann::json{{"disk", 60}, {"memory", 40}}));
  EXPECT_EQ(report["declined_pages"], 36);
  EXPECT_DOUBLE_EQ(report["hit_rate"], 0.6);
  EXPECT_EQ(report["verify"]["mismatches"], 12);
  EXPECT_EQ(report["ttft_ms"]["p50"], 2);
  EXPECT_EQ(report["bytes"]["l1_to_l2"], 21);
  EXPECT_EQ(report["bytes"]["l2_to_l1"], 22);
  EXPECT_EQ(report["bytes"]["l2_to_l3"], 23);
  EXPECT_EQ(report["bytes"]["l3_to_l2"], 24);
  EXPECT_EQ(report["evicted_pages"]["l3"], 27);
  EXPECT_EQ(report["steps"], 28);
  EXPECT_EQ(report["reductions"], 29);
  EXPECT_EQ(report["divergences"], 30);
  EXPECT_EQ(report["storage_failures"], 31);
  EXPECT_EQ(report["backups"]["dropped_pages"], 32);
  EXPECT_EQ(report["backups"]["retries"], 33);
  EXPECT_EQ(report["errors"], 13 + 34);
  EXPECT_EQ(report["given_up_tokens"]["no_room"], 35);
  EXPECT_EQ(
    keys_of(report["given_up_tokens"]),
    (std::set<std::string>{"unavailable", "late", "failed", "copy_failed", "corrupt", "gone",
                           "stopped", "no_room", "over_quota", "too_short", "faster_to_compute"}));
}

TEST(ReplayReportTest, EmptyReplayDividesByNothing) {
  const auto report = to_json(replay_totals{}, {});
  EXPECT_EQ(report["hit_rate"], 0.0);
  EXPECT_EQ(report["ttft_ms"]["p99"], 0.0);
  EXPECT_NE(to_text(replay_totals{}), "");
}

TEST(ReplayReportTest, SumsGoBackToTheFieldsTheyCameFrom) {
  auto totals = sample();
  auto sums = totals.summed();
  EXPECT_EQ(std::set<int64_t>(sums.begin(), sums.end()).size(), sums.size());
  for (auto& sum : sums)
    sum *= 3;
  totals.take_sums(sums);
  EXPECT_EQ(totals.pages_checked, 33u);
  EXPECT_EQ(totals.mismatches, 36u);
  EXPECT_EQ(totals.engine_errors, 39u);
  EXPECT_EQ(totals.counters.bytes_l1_to_l2, 63u);
  EXPECT_EQ(totals.counters.bytes_l3_to_l2, 72u);
  EXPECT_EQ(totals.counters.evicted_l3, 81u);
  EXPECT_EQ(totals.counters.storage_failures, 93u);
  EXPECT_EQ(totals.counters.dropped_backups, 96u);
  EXPECT_EQ(totals.counters.backup_retries, 99u);
  EXPECT_EQ(totals.counters.errors, 102u);
  // The instance's own, equal on all ranks.
  EXPECT_EQ(totals.counters.steps, 28u);
  EXPECT_EQ(totals.counters.reductions, 29u);
  EXPECT_EQ(totals.counters.divergences, 30u);
  EXPECT_EQ(totals.requests, 10u);
}

TEST(ReplayReportTest, TextSaysWhatEachTierSaved) {
  const auto text = to_text(sample());
  EXPECT_NE(text.find("served from L2              200   20.0 %"), std::string::npos) << text;
  EXPECT_NE(text.find("12 mismatches"), std::string::npos) << text;
}

} // namespace
} // namespace hicache
