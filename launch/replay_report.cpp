#include "launch/replay_report.hpp"

#include <absl/strings/str_format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>

namespace hicache {

namespace {

/// The fields that are summed over ranks.
auto summed_fields(auto& totals) {
  auto& c = totals.counters;
  return std::array{&totals.pages_checked, &totals.mismatches,  &totals.engine_errors,
                    &c.bytes_l1_to_l2,     &c.bytes_l2_to_l1,   &c.bytes_l2_to_l3,
                    &c.bytes_l3_to_l2,     &c.evicted_l1,       &c.evicted_l2,
                    &c.evicted_l3,         &c.storage_failures, &c.backup_retries,
                    &c.dropped_backups,    &c.errors,           &c.declined_pages};
}

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

} // namespace

std::vector<int64_t> replay_totals::summed() const {
  auto values = std::vector<int64_t>{};
  for (const auto* field : summed_fields(*this))
    values.push_back(static_cast<int64_t>(*field));
  return values;
}

void replay_totals::take_sums(const std::vector<int64_t>& sums) {
  auto i = size_t{0};
  for (auto* field : summed_fields(*this))
    *field = static_cast<uint64_t>(sums[i++]);
}

double quantile(std::vector<double> values, double q) {
  if (values.empty())
    return 0;
  const auto rank = std::ceil(q * static_cast<double>(values.size()));
  const auto i = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(i), values.end());
  return values[i];
}

nlohmann::json to_json(const replay_totals& totals,
                       const std::vector<std::pair<std::string, std::string>>& config) {
  const auto& c = totals.counters;
  auto settings = nlohmann::json::object();
  for (const auto& [name, value] : config)
    settings[name] = value;
  auto given_up = nlohmann::json::object();
  for (auto why = size_t{0}; why < static_cast<size_t>(miss_reason::none); ++why)
    given_up[to_string(static_cast<miss_reason>(why))] = totals.given_up[why];
  return {
    {"requests", totals.requests},
    {"prompt_tokens", totals.prompt_tokens},
    {"computed_tokens", totals.computed_tokens},
    {"cached_tokens",
     {{"l1", totals.cached_l1}, {"l2", totals.cached_l2}, {"l3", totals.cached_l3}}},
    {"cached_tokens_l3", totals.cached_l3_tiers},
    {"hit_rate", share(totals.cached_tokens(), totals.prompt_tokens)},
    {"verify", {{"pages_checked", totals.pages_checked}, {"mismatches", totals.mismatches}}},
    {"ttft_ms",
     {{"p50", quantile(totals.ttft_ms, 0.5)},
      {"p90", quantile(totals.ttft_ms, 0.9)},
      {"p99", quantile(totals.ttft_ms, 0.99)}}},
    {"wall_s", totals.wall_s},
    {"bytes",
     {{"l1_to_l2", c.bytes_l1_to_l2},
      {"l2_to_l1", c.bytes_l2_to_l1},
      {"l2_to_l3", c.bytes_l2_to_l3},
      {"l3_to_l2", c.bytes_l3_to_l2}}},
    {"evicted_pages", {{"l1", c.evicted_l1}, {"l2", c.evicted_l2}, {"l3", c.evicted_l3}}},
    {"steps", c.steps},
    {"reductions", c.reductions},
    {"step_us", {{"p50", quantile(totals.step_us, 0.5)}, {"p99", quantile(totals.step_us, 0.99)}}},
    {"divergences", c.divergences},
    {"given_up_tokens", given_up},
    {"declined_pages", c.declined_pages},
    {"storage_failures", c.storage_failures},
    {"backups", {{"retries", c.backup_retries}, {"dropped_pages", c.dropped_backups}}},
    {"errors", totals.engine_errors + c.errors},
    {"interrupted", totals.interrupted},
    {"config", settings},
  };
}

std::string to_text(const replay_totals& totals) {
  const auto row = [&](const char* name, uint64_t tokens) {
    return absl::StrFormat("  %-18s %12d  %5.1f %%\n", name, tokens,
                           100 * share(tokens, totals.prompt_tokens));
  };
  auto tiers = std::string{};
  for (const auto& [tier, tokens] : totals.cached_l3_tiers)
    tiers += row(("  in " + tier).c_str(), tokens);
  return absl::StrFormat("  %-18s %12d\n", "prompt tokens", totals.prompt_tokens)
         + row("served from L1", totals.cached_l1) + row("served from L2", totals.cached_l2)
         + row("served from L3", totals.cached_l3) + tiers + row("computed", totals.computed_tokens)
         + absl::StrFormat(
           "  %d requests in %.1f s, %d cached pages checked, %d mismatches, %d errors\n",
           totals.requests, totals.wall_s, totals.pages_checked, totals.mismatches,
           totals.engine_errors + totals.counters.errors);
}

} // namespace hicache
