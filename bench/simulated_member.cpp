#include "bench/simulated_member.hpp"

#include "base/check.hpp"
#include "base/mix.hpp"
#include "messages/page_header.hpp"
#include "messages/shard_map.hpp"

#include <algorithm>
#include <cstring>

namespace hicache::bench {

namespace {

constexpr auto object_bytes = uint32_t{1} << 20;

} // namespace

member_pages::member_pages(uint64_t seed, uint32_t number, uint64_t pages)
  : salt_(mix(seed, number)), shard_of_slot_(pages) {
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

void member_pages::write(std::span<const uint32_t> shards) {
  HICACHE_CHECK(last_ - first_ < slots());
  shard_of_slot_[last_ % slots()]
    = static_cast<uint8_t>(shards[shard_of(announced(last_).key, shards)]);
  ++last_;
}

void member_pages::reshard(std::span<const uint32_t> shards) {
  for (auto page = first_; page < last_; ++page)
    shard_of_slot_[page % slots()]
      = static_cast<uint8_t>(shards[shard_of(announced(page).key, shards)]);
}

std::vector<uint64_t> member_pages::pages_of(uint8_t shard, uint64_t& next, size_t most) const {
  auto found = std::vector<uint64_t>{};
  while (found.size() < most) {
    const auto from = shard_of_slot_.begin() + static_cast<ptrdiff_t>(next);
    const auto at = std::find(from, shard_of_slot_.end(), shard);
    next = static_cast<uint64_t>(at - shard_of_slot_.begin());
    if (at == shard_of_slot_.end())
      break;
    if (const auto page = page_in(next); page < last_)
      found.push_back(page);
    ++next;
  }
  return found;
}

void member_pages::count(std::vector<uint64_t>& counts) const {
  for (auto page = first_; page < last_; ++page)
    ++counts[shard(page)];
}

uint64_t member_pages::page_in(uint64_t slot) const noexcept {
  const auto oldest = first_ % slots();
  return first_ + (slot >= oldest ? slot - oldest : slot + slots() - oldest);
}

} // namespace hicache::bench
