#pragma once

#include "hicache/operations.hpp"

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// Counters of a replay. Requests and tokens belong to the instance and are equal on every rank;
/// the rest is per rank.
struct replay_counts {
  uint64_t requests = 0;
  uint64_t prompt_tokens = 0;
  uint64_t computed_tokens = 0;
  uint64_t cached_l1 = 0;
  uint64_t cached_l2 = 0;
  uint64_t cached_l3 = 0;
  /// Of cached_l3, by the tier that had it, where L3 is made of tiers.
  std::map<std::string, uint64_t> cached_l3_tiers;
  /// Tokens recomputed although a tier held them, by miss reason.
  std::array<uint64_t, static_cast<size_t>(miss_reason::none) + 1> given_up{};
  uint64_t pages_checked = 0;
  uint64_t mismatches = 0;
  /// Requests that could not be served, failed copies, failed steps.
  uint64_t engine_errors = 0;

  uint64_t cached_tokens() const noexcept { return cached_l1 + cached_l2 + cached_l3; }
};

/// Results of a replay. Per-rank values are this rank's until `gather` has summed them.
struct replay_totals : replay_counts {
  double wall_s = 0;
  bool interrupted = false;
  std::vector<double> ttft_ms;
  std::vector<double> step_us;
  rank_counters counters;

  /// The values summed over ranks, in a fixed order. Steps, reductions and divergences belong to
  /// the instance and are not included.
  std::vector<int64_t> summed() const;

  /// Replaces these values by the sums.
  void take_sums(const std::vector<int64_t>& sums);
};

/// The report of one run, with the documented keys (`docs/operations.md`).
nlohmann::json to_json(const replay_totals& totals,
                       const std::vector<std::pair<std::string, std::string>>& config);

/// Text summary: what each tier saved.
std::string to_text(const replay_totals& totals);

/// Nearest-rank quantile; 0 if there are no values.
double quantile(std::vector<double> values, double q);

} // namespace hicache
