// scaling_bench: the L3 index with many members and keys, in virtual time. docs/scaling.md
// describes what it covers and omits.

#include "bench/index_simulation.hpp"
#include "launch/stop_signal.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <exception>
#include <fstream>
#include <iostream>

namespace {

using namespace hicache;
using namespace hicache::bench;

nlohmann::json to_rows(const simulation_options& options, const simulation_report& report) {
  const auto prefix = std::to_string(options.shards) + " shards, ";
  auto rows = nlohmann::json::array();
  const auto add = [&](const simulation_figure& x, const char* kind) {
    rows.push_back({{"name", prefix + kind + x.name},
                    {"value", x.value},
                    {"unit", x.unit},
                    {"baseline", nullptr},
                    {"ratio", nullptr},
                    {"target", nullptr},
                    {"holds", nullptr}});
  };
  for (const auto& x : report.simulated)
    add(x, "");
  for (const auto& x : report.measured)
    add(x, "measured, ");
  return rows;
}

int run(const simulation_options& options, const std::string& json, const stop_signal& stop) {
  auto hooks = simulation_hooks{};
  hooks.progress
    = [](const std::string& what) { std::cerr << "Simulating: " << what << std::endl; };
  hooks.is_stopped = [&] { return stop.raised(); };
  const auto report = simulate_index(options, hooks);
  if (!report) {
    std::cerr << "scaling_bench: " << report.error().detail << "\n";
    switch (report.error().code) {
      case ec::stopping:
        return 130;
      case ec::invalid_argument:
        return 2;
      default:
        return 1;
    }
  }
  const auto rows = to_rows(options, *report);
  if (json.empty()) {
    for (const auto& x : rows)
      std::cout << x["name"].get<std::string>() << ": " << x["value"] << " "
                << x["unit"].get<std::string>() << "\n";
    return 0;
  }
  if (!(std::ofstream{json} << nlohmann::json{{"rows", rows}}.dump(2) << "\n").flush()) {
    std::cerr << "scaling_bench: cannot write " << json << "\n";
    return 2;
  }
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  try {
    const auto stop = stop_signal{};
    auto options = simulation_options{};
    auto json = std::string{};
    auto app = CLI::App{"The index of L3 with many members and keys, in virtual time"};
    app.add_option("--members", options.members, "Ranks that export memory and read")
      ->capture_default_str();
    app.add_option("--keys", options.keys, "Pages on all members together")->capture_default_str();
    app.add_option("--shards", options.shards, "Shards of the index; one more joins")
      ->capture_default_str();
    app.add_option("--seed", options.seed, "Equal seeds give equal figures in virtual time")
      ->capture_default_str();
    app
      .add_option("--writes", options.writes_per_s,
                  "Batches of 128 pages that each member writes a second")
      ->capture_default_str();
    app
      .add_option("--lookups", options.lookups_per_s,
                  "Batches of 128 keys that each member looks up a second")
      ->capture_default_str();
    app.add_option("--json", json, "Write the figures to this file, not to standard output");
    CLI11_PARSE(app, argc, argv);
    return run(options, json, stop);
  } catch (const std::exception& problem) {
    std::cerr << "scaling_bench: " << problem.what() << "\n";
    return 2;
  }
}
