#include "bench/simulated_member.hpp"

#include "base/check.hpp"
#include "base/mix.hpp"
#include "messages/page_header.hpp"

#include <cstring>

namespace hicache::bench {

namespace {

constexpr auto object_bytes = uint32_t{1} << 20;

/// The shards, of which there are two at least, are all in different processes.
std::array<uint8_t, 2> numbers_of(const shard_set& shards, const page_key& key) {
  const auto keepers = shards.keepers_of(key);
  return {static_cast<uint8_t>(shards.numbers[keepers.first]),
          static_cast<uint8_t>(shards.numbers[keepers.second])};
}

} // namespace

member_pages::member_pages(uint64_t seed, uint32_t number, uint64_t pages)
  : salt_(mix(seed, number)), keepers_of_slot_(pages) {
  HICACHE_CHECK(pages > 0);
}

announced_page member_pages::announced(uint64_t page) const noexcept {
  auto made = announced_page{};
  for (auto i = size_t{0}; i < made.key.bytes.size() / sizeof(uint64_t); ++i) {
    const auto word = mix(mix(salt_, page), i);
    std::memcpy(made.key.bytes.data() + i * sizeof(word), &word, sizeof(word));
  }
  made.offset = page % slots() * slot_bytes_for(object_bytes);
  made.generation = static_cast<uint32_t>(page / slots() + 1);
  made.length = object_bytes;
  return made;
}

void member_pages::write(const shard_set& shards) {
  HICACHE_CHECK(last_ - first_ < slots());
  keepers_of_slot_[last_ % slots()] = numbers_of(shards, announced(last_).key);
  ++last_;
}

void member_pages::reshard(const shard_set& shards) {
  for (auto page = first_; page < last_; ++page)
    keepers_of_slot_[page % slots()] = numbers_of(shards, announced(page).key);
}

std::vector<uint64_t> member_pages::pages_of(uint8_t shard, uint64_t& next, size_t most) const {
  auto found = std::vector<uint64_t>{};
  for (; next < slots() && found.size() < most; ++next)
    if (const auto& [first, second] = keepers_of_slot_[next]; first == shard || second == shard)
      if (const auto page = page_in(next); page < last_)
        found.push_back(page);
  return found;
}

void member_pages::count(std::vector<uint64_t>& firsts, std::vector<uint64_t>& all) const {
  for (auto page = first_; page < last_; ++page) {
    const auto& [first, second] = keepers(page);
    ++firsts[first];
    ++all[first];
    ++all[second];
  }
}

uint64_t member_pages::page_in(uint64_t slot) const noexcept {
  const auto oldest = first_ % slots();
  return first_ + (slot >= oldest ? slot - oldest : slot + slots() - oldest);
}

} // namespace hicache::bench
