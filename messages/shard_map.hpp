#pragma once

#include "messages/index_protocol.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

/// Which shard of the index keeps which page. Owners, readers and index processes compute the same.
namespace hicache {

/// Positions of the shards that keep a key.
struct key_keepers {
  static constexpr auto none = ~size_t{0};

  /// Asked first.
  size_t first = 0;
  /// Asked if the first cannot answer; `none` where one process has all shards.
  size_t second = none;

  bool has(size_t at) const noexcept { return at == first || at == second; }

  friend bool operator==(const key_keepers&, const key_keepers&) = default;
};

/// The shards in use, and which of them end together.
struct shard_set {
  /// In order.
  std::vector<uint32_t> numbers;
  /// Of each: equal for those in one process.
  std::vector<uint32_t> processes;

  /// The shard whose number ranks highest for the key (rendezvous hashing, Thaler and Ravishankar
  /// 1998), and the highest one among those in other processes than that: when a process ends, each
  /// of its keys has a keeper left. A shard that comes takes its share of keys from all others, and
  /// one that goes leaves its share to them; no other key moves.
  /// @pre there are shards
  key_keepers keepers_of(const page_key& key) const noexcept;

  friend bool operator==(const shard_set&, const shard_set&) = default;
};

/// For each shard a number that those at the same address share.
/// @param addresses Of the process of each shard.
std::vector<uint32_t> process_numbers(std::span<const std::string> addresses);

/// Adds what another process knows: of two entries for a shard the younger one counts.
/// @returns whether anything was new
/// @relates shard_map
bool merge(shard_map& into, const shard_map& news);

/// Differs, in all likelihood, between two maps that differ.
/// @relates shard_map
uint64_t digest_of(const shard_map& map) noexcept;

} // namespace hicache
