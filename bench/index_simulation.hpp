#pragma once

#include "hicache/error.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// The L3 index with many members and keys in virtual time: real tables and messages, no page data.
namespace hicache::bench {

struct simulation_options {
  uint32_t members = 1000;
  /// Of all members together; each page is on one member.
  uint64_t keys = 100'000'000;
  uint32_t shards = 16;
  uint64_t seed = 1;
  /// Batches of 128 keys per second that each member writes and looks up.
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
  /// In virtual time, and counts; equal for equal options.
  std::vector<simulation_figure> simulated;
  /// CPU time and memory of this process.
  std::vector<simulation_figure> measured;
};

struct simulation_hooks {
  /// Called with the name of the current phase.
  std::function<void(const std::string&)> progress;
  /// True aborts the simulation with ec::stopping.
  std::function<bool()> is_stopped;
};

/// Starts and loads the cluster, then lets shards and members fail, join and be partitioned. After
/// each event the index must again match what the members hold: compares the counts of every shard
/// and member, and the locations of some thousands of pages.
/// @returns invalid_argument for inconsistent options; deadline_exceeded if the index does not
/// converge; corrupt_page if it differs from what the members hold; stopping
result<simulation_report> simulate_index(const simulation_options& options,
                                         const simulation_hooks& hooks);

} // namespace hicache::bench
