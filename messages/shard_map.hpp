#pragma once

#include "messages/index_protocol.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// Maps keys to shards of the index. Members, readers and index processes compute the same mapping.
namespace hicache {

/// Positions of the shards that keep a key.
struct key_keepers {
  static constexpr auto none = ~size_t{0};

  /// Queried first.
  size_t first = 0;
  /// Queried if the first is unreachable; `none` if one process has all shards.
  size_t second = none;

  bool has(size_t at) const noexcept { return at == first || at == second; }

  friend bool operator==(const key_keepers&, const key_keepers&) = default;
};

/// The shards in use, and which of them share a process.
struct shard_set {
  /// Sorted.
  std::vector<uint32_t> numbers;
  /// For each shard; equal for those in one process.
  std::vector<uint32_t> processes;

  /// The shard whose number ranks highest for the key (rendezvous hashing, Thaler and Ravishankar
  /// 1998), and the highest one in another process, so each key keeps a keeper when a process ends.
  /// A new shard takes its share of keys from all others, and a removed one leaves its share to
  /// them; no other key moves.
  /// @pre there are shards
  key_keepers keepers_of(const page_key& key) const noexcept;

  friend bool operator==(const shard_set&, const shard_set&) = default;
};

/// Numbers the processes: equal for shards at the same address.
/// @param addresses The address of each shard's process.
std::vector<uint32_t> process_numbers(std::span<const std::string> addresses);

/// Merges another process's map: per shard, the newer entry wins.
/// @returns whether anything changed
/// @relates shard_map
bool merge(shard_map& into, const shard_map& news);

/// Different maps have different digests with high probability.
/// @relates shard_map
uint64_t digest_of(const shard_map& map) noexcept;

} // namespace hicache
