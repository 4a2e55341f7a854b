#include "messages/shard_map.hpp"

#include "base/check.hpp"
#include "base/mix.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace hicache {

namespace {

auto rank_of(const index_shard& shard) {
  return std::tie(shard.since_ms, shard.address);
}

} // namespace

size_t shard_of(const page_key& key, std::span<const uint32_t> numbers) noexcept {
  HICACHE_CHECK(!numbers.empty());
  // Not the word that hash tables use: the keys of a shard would share its properties.
  auto word = uint64_t{};
  std::memcpy(&word, key.bytes.data() + key.bytes.size() / 2, sizeof(word));
  auto best = size_t{0};
  auto highest = uint64_t{0};
  for (auto i = size_t{0}; i < numbers.size(); ++i)
    if (const auto rank = mix(numbers[i] + 1, word); rank > highest) {
      highest = rank;
      best = i;
    }
  return best;
}

std::vector<uint32_t> shard_numbers(const shard_map& map) {
  auto numbers = std::vector<uint32_t>{};
  for (const auto& shard : map.shards)
    if (!shard.address.empty())
      numbers.push_back(shard.number);
  return numbers;
}

bool merge(shard_map& into, const shard_map& news) {
  auto changed = false;
  for (const auto& shard : news.shards) {
    const auto at = std::ranges::lower_bound(into.shards, shard.number, {}, &index_shard::number);
    if (at == into.shards.end() || at->number != shard.number)
      into.shards.insert(at, shard);
    else if (rank_of(*at) < rank_of(shard))
      *at = shard;
    else
      continue;
    changed = true;
  }
  return changed;
}

uint64_t digest_of(const shard_map& map) noexcept {
  auto digest = uint64_t{map.shards.size()};
  for (const auto& shard : map.shards) {
    digest = mix(digest, shard.number);
    digest = mix(digest, shard.since_ms);
    for (const auto c : shard.address)
      digest = mix(digest, static_cast<uint8_t>(c));
  }
  return digest;
}

} // namespace hicache
