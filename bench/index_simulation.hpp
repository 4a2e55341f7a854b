#pragma once

#include "hicache/error.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// What the index of L3 does with many members and keys, in virtual time: its real tables and
/// messages, no bytes of pages.
namespace hicache::bench {

struct simulation_options {
  uint32_t members = 1000;
  /// On all members together; each page is on one.
  uint64_t keys = 100'000'000;
  uint32_t shards = 16;
  uint64_t seed = 1;
  /// Batches of 128 keys that each member writes and looks up a second.
  double writes_per_s = 1;
  double lookups_per_s = 10;
};

struct simulation_figure {
  std::string name;
  double value = 0;
  std::string unit;

  friend bool operator==(const simulation_figure&, const simulation_figure&) = default;
};

struct simulation_report {
  /// In virtual time, and counts: equal for equal options.
  std::vector<simulation_figure> simulated;
  /// CPU time and memory of this process.
  std::vector<simulation_figure> measured;
};

struct simulation_hooks {
  /// Told what happens now.
  std::function<void(const std::string&)> progress;
  /// True ends the simulation with ec::stopping.
  std::function<bool()> is_stopped;
};

/// Starts the cluster, loads it, and lets shards and members fail, join and be cut off. After each
/// of these the index has to offer what the members hold: the counts of every shard and member are
/// compared, and the places of some thousands of pages.
/// @returns invalid_argument for options that make no cluster; deadline_exceeded if the index does
/// not become whole; corrupt_page if it offers anything else than what is there; stopping
result<simulation_report> simulate_index(const simulation_options& options,
                                         const simulation_hooks& hooks);

} // namespace hicache::bench
