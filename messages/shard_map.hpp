#pragma once

#include "messages/index_protocol.hpp"

#include <cstdint>
#include <span>
#include <vector>

/// Which shard of the index keeps which page. Owners, readers and index processes compute the same.
namespace hicache {

/// The shard that keeps a key: the position in `numbers` whose number ranks highest for that key
/// (rendezvous hashing, Thaler and Ravishankar 1998). A shard that comes takes its share of keys
/// from all others, and one that goes leaves its share to them; no other key moves.
/// @pre `numbers` is not empty
size_t shard_of(const page_key& key, std::span<const uint32_t> numbers) noexcept;

/// The numbers of the shards that are in use, in order.
/// @relates shard_map
std::vector<uint32_t> shard_numbers(const shard_map& map);

/// Adds what another process knows: of two entries for a shard the younger one counts.
/// @returns whether anything was new
/// @relates shard_map
bool merge(shard_map& into, const shard_map& news);

/// Differs, in all likelihood, between two maps that differ.
/// @relates shard_map
uint64_t digest_of(const shard_map& map) noexcept;

} // namespace hicache
