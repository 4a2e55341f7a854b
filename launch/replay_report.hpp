#pragma once

#include "hicache/operations.hpp"

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// What the engine of a replay counts. Requests and tokens are those of the instance and equal on
/// every rank; the rest is this rank's own.
struct replay_counts {
  uint64_t requests = 0;
  uint64_t prompt_tokens = 0;
  uint64_t computed_tokens = 0;
  uint64_t cached_l1 = 0;
  uint64_t cached_l2 = 0;
  uint64_t cached_l3 = 0;
  /// Tokens that were computed although a tier held them, by reason (`give_up`).
  std::array<uint64_t, static_cast<size_t>(miss_reason::none) + 1> given_up{};
  uint64_t pages_checked = 0;
  uint64_t mismatches = 0;
  /// Requests that could not be served, failed copies, steps that failed.
  uint64_t engine_errors = 0;

  uint64_t cached_tokens() const noexcept { return cached_l1 + cached_l2 + cached_l3; }
};

/// What a replay measured. What is a rank's own is this rank's until `gather` has summed it.
struct replay_totals : replay_counts {
  double wall_s = 0;
  bool interrupted = false;
  std::vector<double> ttft_ms;
  std::vector<double> step_us;
  rank_counters counters;

  /// The numbers that are summed over ranks, in a fixed order; steps, reductions and divergences
  /// are the instance's and are not among them.
  std::vector<int64_t> summed() const;

  /// Replaces them by sums.
  void take_sums(const std::vector<int64_t>& sums);
};

/// The report of one run, with the keys that users depend on (`docs/operations.md`).
nlohmann::json to_json(const replay_totals& totals,
                       const std::vector<std::pair<std::string, std::string>>& config);

/// A few lines for people: what each tier saved.
std::string to_text(const replay_totals& totals);

/// The value below which a share `q` of the values lies (nearest rank); 0 if there are none.
double quantile(std::vector<double> values, double q);

} // namespace hicache
