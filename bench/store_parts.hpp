#pragma once

#include "hicache/error.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

/// Parts of store.py's measurements of the cluster store, each run as a separate process.
namespace hicache::bench {

/// Target of a part.
struct index_address {
  /// HOST:PORT of an index, or of `serve_fixed_answers`.
  std::string at;
  /// True for `serve_fixed_answers`.
  bool is_bare = false;
};

struct copy_options {
  uint64_t bytes = uint64_t{1} << 20;
  uint64_t batch = 16;
  /// Number of pages copied from, in sequence.
  uint64_t pages = 256;
  double seconds = 1;
};

/// Lower bound for a get: one thread copies pages into the memory of a batch.
nlohmann::json measure_memcpy(const copy_options& options);

/// Answers lookups, mounts and announcements like an index, by bare Cap'n Proto RPC without a
/// table. Prints its address; returns only if it fails.
result<void> serve_fixed_answers();

struct ask_options {
  index_address index;
  uint64_t batch = 128;
  uint64_t outstanding = 1;
  /// Use a blocking thread per outstanding request, not an actor or the Cap'n Proto event loop.
  bool by_threads = false;
  uint64_t keys = 1000000;
  double seconds = 1;
};

/// Measures lookups of `batch` keys with a fixed number outstanding.
result<nlohmann::json> measure_lookups(const ask_options& options);

struct announce_options {
  index_address index;
  uint64_t keys = 1000000;
  /// The keys are divided equally among the members.
  uint64_t members = 1;
  uint64_t batch = 128;
  /// Outstanding batches per member; members announce one after the other.
  uint64_t outstanding = 1;
  /// Keep running afterwards and remove a member for each line on standard input, until its end.
  bool stay = false;
};

/// Mounts members without memory at an index and announces the keys of `hicache-bench store`
/// through them. Prints the results before it stays.
result<void> announce_keys(const announce_options& options);

struct watch_options {
  std::string index;
  /// Number of sampled keys, from the first of `hicache-bench store` on.
  uint64_t sample = 128;
};

/// Prints a line with the CLOCK_MONOTONIC time whenever the number of keys in the index, or of
/// sampled keys found, changes. Returns only if it fails.
result<void> watch_index(const watch_options& options);

} // namespace hicache::bench
