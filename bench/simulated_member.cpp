#include "bench/simulated_member.hpp"

#include "base/check.hpp"
#include "base/mix.hpp"
#include "messages/page_header.hpp"

#include <cstring>

namespace hicache::bench {

namespace {

/// The two keepers of a key. Requires at least two shards, each in its own process.
std::array<uint8_t, 2> numbers_of(const shard_set& shards, const page_key& key) {
  const auto keepers = shards.keepers_of(key);
  return {static_cast<uint8_t>(shards.numbers[keepers.first]),
          static_cast<uint8_t>(shards.numbers[keepers.second])};
}

} // namespace

page_id id_of(const page_key& key) noexcept {
  auto id = page_id{};
  std::memcpy(&id, key.bytes.data() + key.bytes.size() - sizeof id, sizeof id);
  return id;
}

member_pages::member_pages(uint64_t seed, uint32_t number, uint64_t pages)
  : salt_(mix(seed, number)), number_(number), keepers_of_slot_(pages) {
  HICACHE_CHECK(pages > 0);
}

page_key member_pages::key(uint64_t page) const noexcept {
  const auto seed = mix(salt_, page);
  const auto words = std::array{mix(seed, 0), mix(seed, 1), mix(seed, 2), id_of(number_, page)};
  auto made = page_key{};
  static_assert(sizeof words == sizeof made.bytes);
  std::memcpy(made.bytes.data(), words.data(), sizeof words);
  return made;
}

announced_page member_pages::announced(uint64_t page) const noexcept {
  auto made = announced_page{};
  made.key = key(page);
  made.offset = page % slots() * slot_bytes_for(object_bytes);
  made.generation = static_cast<uint32_t>(page / slots() + 1);
  made.length = object_bytes;
  return made;
}

void member_pages::write(const shard_set& shards) {
  HICACHE_CHECK(last_ - first_ < slots());
  keepers_of_slot_[last_ % slots()] = numbers_of(shards, key(last_));
  ++last_;
}

void member_pages::reshard(const shard_set& shards) {
  for (auto page = first_; page < last_; ++page)
    keepers_of_slot_[page % slots()] = numbers_of(shards, key(page));
}

std::vector<page_id> member_pages::pages_of(uint8_t shard, uint64_t& next, size_t most) const {
  auto found = std::vector<page_id>{};
  for (; next < slots() && found.size() < most; ++next)
    if (const auto& [first, second] = keepers_of_slot_[next]; first == shard || second == shard)
      if (const auto page = page_in(next); page < last_)
        found.push_back(id_of(number_, page));
  return found;
}

uint64_t member_pages::page_in(uint64_t slot) const noexcept {
  const auto oldest = first_ % slots();
  return first_ + (slot >= oldest ? slot - oldest : slot + slots() - oldest);
}

} // namespace hicache::bench
