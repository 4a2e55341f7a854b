// step_bench: cost of a step, and of a late rank, as rows of the table printed by run.sh.
//
// What: `latency` and `ranks` are ranks of an mpirun job, `layouts` and `prefetch` are one process.
// Vary: only the number of ranks.
// Read: through run.sh. Each part repeats in rounds that contain both the figure and its baseline.

#include "base/check.hpp"
#include "bench/step_rows.hpp"
#include "hicache/rank_reducer.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string_view>

namespace hicache::bench {

namespace {

std::string text_of(const bound& target) {
  auto text = std::array<char, 32>{};
  const auto* form = target.of == bound::side::value_at_most   ? "<= %g"
                     : target.of == bound::side::ratio_at_most ? "ratio <= %g"
                                                               : "ratio >= %g";
  std::snprintf(text.data(), text.size(), form, target.limit);
  return text.data();
}

bool holds(const row& x) {
  switch (x.target->of) {
    case bound::side::value_at_most:
      return x.value <= x.target->limit;
    case bound::side::ratio_at_most:
      return x.ratio <= x.target->limit;
    case bound::side::ratio_at_least:
      return x.ratio >= x.target->limit;
  }
  return false;
}

template <class T>
nlohmann::json or_null(const std::optional<T>& x) {
  return x ? nlohmann::json(*x) : nlohmann::json();
}

} // namespace

nlohmann::json to_json(const std::vector<row>& rows) {
  auto list = nlohmann::json::array();
  for (const auto& x : rows)
    list.push_back({{"name", x.name},
                    {"value", x.value},
                    {"unit", x.unit},
                    {"baseline", or_null(x.baseline)},
                    {"ratio", or_null(x.ratio)},
                    {"target", x.target ? nlohmann::json(text_of(*x.target)) : nlohmann::json()},
                    {"holds", x.target ? nlohmann::json(holds(x)) : nlohmann::json()}});
  return {{"rows", list}};
}

double median(std::vector<double> values) {
  HICACHE_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

namespace {

int run(int argc, char** argv) {
  const auto part = std::string_view{argc == 3 ? argv[1] : ""};
  const auto write = [&](const std::vector<row>& rows) {
    auto file = std::ofstream{argv[2]};
    file << to_json(rows).dump(2) << "\n";
    return file.flush() ? 0 : 1;
  };
  if (part == "prefetch")
    return write(measure_prefetch());
  if (part == "layouts")
    return write(measure_layouts());
  if (part != "latency" && part != "ranks") {
    std::fprintf(stderr, "usage: step_bench {latency|layouts|prefetch|ranks} FILE.json\n");
    return 2;
  }
  const auto mpi = mpi_session::start(&argc, &argv);
  if (!mpi) {
    std::fprintf(stderr, "step_bench: %s\n", to_string(mpi.error()).c_str());
    return 1;
  }
  const auto rows = part == "latency" ? measure_latency() : measure_ranks();
  return mpi->rank() == 0 ? write(rows) : 0;
}

} // namespace

} // namespace hicache::bench

int main(int argc, char** argv) {
  return hicache::bench::run(argc, argv);
}
