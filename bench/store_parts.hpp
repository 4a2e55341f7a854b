#pragma once

#include "hicache/error.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

/// What store.py measures the cluster store with. Each part is a process of its own.
namespace hicache::bench {

/// What a part speaks to.
struct index_address {
  /// HOST:PORT of an index, or of `serve_fixed_answers`.
  std::string at;
  /// True for the latter.
  bool is_bare = false;
};

struct copy_options {
  uint64_t bytes = uint64_t{1} << 20;
  uint64_t batch = 16;
  /// Pages copied from, one after the other.
  uint64_t pages = 256;
  double seconds = 1;
};

/// What a get costs at the least: one thread copies pages into the memory of a batch.
nlohmann::json measure_memcpy(const copy_options& options);

/// Answers look-ups, mounts and announcements as an index does, by bare Cap'n Proto RPC and without
/// a table. Says where it listens; returns never unless it fails.
result<void> serve_fixed_answers();

struct ask_options {
  index_address index;
  uint64_t batch = 128;
  uint64_t outstanding = 1;
  /// Threads that wait for each answer have them under way, rather than an actor, or the loop of
  /// Cap'n Proto.
  bool by_threads = false;
  uint64_t keys = 1000000;
  double seconds = 1;
};

/// Look-ups of `batch` keys of which so many are under way at a time.
result<nlohmann::json> measure_lookups(const ask_options& options);

struct announce_options {
  index_address index;
  uint64_t keys = 1000000;
  /// Each announces as many of the keys.
  uint64_t members = 1;
  uint64_t batch = 128;
  /// Batches that a member has under way; one member announces at a time.
  uint64_t outstanding = 1;
  /// Stay afterwards, and let a member go for each line on standard input, until that ends.
  bool stay = false;
};

/// Mounts members without memory at an index and announces the keys of `hicache-bench store` by
/// them. Prints the figures before it stays.
result<void> announce_keys(const announce_options& options);

struct watch_options {
  std::string index;
  /// Keys that are looked up again and again, from the first one of `hicache-bench store` on.
  uint64_t sample = 128;
};

/// Prints a line whenever an index holds another number of keys or finds another number of the
/// sampled ones, with the time of CLOCK_MONOTONIC. Returns never unless it fails.
result<void> watch_index(const watch_options& options);

} // namespace hicache::bench
