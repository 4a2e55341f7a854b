#include "messages/shard_map.hpp"

#include "base/check.hpp"
#include "base/mix.hpp"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace hicache {

namespace {

auto rank_of(const index_shard& shard) {
  return std::tie(shard.epoch, shard.address);
}

} // namespace

key_keepers shard_set::keepers_of(const page_key& key) const noexcept {
  HICACHE_CHECK(!numbers.empty() && numbers.size() == processes.size());
  // Not the word used by hash tables: the keys of one shard would be correlated in it.
  auto word = uint64_t{};
  std::memcpy(&word, key.bytes.data() + key.bytes.size() / 2, sizeof(word));
  auto found = key_keepers{};
  auto first_rank = mix(numbers[0] + 1, word);
  auto second_rank = uint64_t{0};
  for (auto i = size_t{1}; i < numbers.size(); ++i) {
    const auto rank = mix(numbers[i] + 1, word);
    const auto is_apart = processes[i] != processes[found.first];
    if (rank > first_rank) {
      if (is_apart) {
        found.second = found.first;
        second_rank = first_rank;
      }
      found.first = i;
      first_rank = rank;
    } else if (is_apart && (found.second == key_keepers::none || rank > second_rank)) {
      found.second = i;
      second_rank = rank;
    }
  }
  return found;
}

std::vector<uint32_t> process_numbers(std::span<const std::string> addresses) {
  auto numbers = std::vector<uint32_t>{};
  for (const auto& address : addresses)
    numbers.push_back(
      static_cast<uint32_t>(std::ranges::find(addresses, address) - addresses.begin()));
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
    digest = mix(digest, shard.epoch);
    for (const auto c : shard.address)
      digest = mix(digest, static_cast<uint8_t>(c));
  }
  return digest;
}

} // namespace hicache
