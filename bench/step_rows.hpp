#pragma once

#include "hicache/error.hpp"

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

/// Shared by the parts of step_bench: rows of the table printed by run.sh.
namespace hicache::bench {

/// Bound on a row's value or ratio.
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
  /// From paired medians, so not always value / baseline.
  std::optional<double> ratio{};
  std::optional<bound> target{};
};

nlohmann::json to_json(const std::vector<row>& rows);

/// The upper median. @pre values is not empty
double median(std::vector<double> values);

using bench_clock = std::chrono::steady_clock;

inline double microseconds_since(bench_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(bench_clock::now() - begin).count();
}

// -- the parts; collective ones return their rows on rank 0 ------------------

/// Latency of a step compared with its parts. Collective.
std::vector<row> measure_latency();

/// Reductions per step, and the cost of waiting for a late rank. Collective, two ranks.
std::vector<row> measure_ranks();

/// Default layout of L2 and objects of L3 compared with all others. One process without MPI.
std::vector<row> measure_layouts();

/// Prefetch from a slow store compared with the store alone, and steps while a long prompt is
/// named. One process without MPI.
std::vector<row> measure_prefetch();

} // namespace hicache::bench
