#pragma once

#include "hicache/error.hpp"

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

/// What the parts of step_bench share: rows of the table that run.sh prints.
namespace hicache::bench {

/// A bound of a row's value or of its ratio.
struct bound {
  enum class side : uint8_t { value_at_most, ratio_at_most, ratio_at_least };

  side of;
  double limit = 0;
};

struct row {
  std::string name;
  double value = 0;
  std::string unit;
  std::optional<double> baseline{};
  /// Of medians that were taken together, so not always value / baseline.
  std::optional<double> ratio{};
  std::optional<bound> target{};
};

nlohmann::json to_json(const std::vector<row>& rows);

/// The middle one; of an even number the upper middle.
/// @pre values is not empty
double median(std::vector<double> values);

using bench_clock = std::chrono::steady_clock;

inline double microseconds_since(bench_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(bench_clock::now() - begin).count();
}

// -- the parts; of those that are collective, rank 0 gets the rows -----------

/// How long a step takes beside what it is made of. Collective.
std::vector<row> measure_latency();

/// Reductions per step, and what it costs to wait for a late rank. Collective, two ranks.
std::vector<row> measure_ranks();

/// Prefetching from a slow store beside the store itself. One process without MPI.
std::vector<row> measure_prefetch();

} // namespace hicache::bench
