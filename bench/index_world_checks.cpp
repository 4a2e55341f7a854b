// Compares the simulated index, and the readers' view, with the actual state of the members.

#include "bench/index_world.hpp"

#include <algorithm>

namespace hicache::bench {

std::optional<std::string> index_world::difference(std::mt19937_64& random, int samples) const {
  if (auto found = difference_of_counts())
    return found;
  if (auto found = difference_of_routes())
    return found;
  const auto shards = first_shards(shard_count());
  for (auto i = 0; i < samples; ++i) {
    const auto& who = members_[random() % members_.size()];
    const auto margin = who.pages.slots() / 8;
    const auto from = who.pages.first() - std::min(who.pages.first(), margin);
    const auto page = from + random() % (who.pages.last() + margin - from);
    const auto key = who.pages.key(page);
    const auto keepers = shards.keepers_of(key);
    const auto held = holders(id_of(key));
    for (auto s = size_t{0}; s < shard_count(); ++s) {
      const auto& table = shards_[s].table;
      const auto found = table.locate(std::span{&key, 1});
      const auto copies = found.of(0);
      if (copies.size() != (keepers.has(s) ? held : 0U))
        return "shard " + std::to_string(s) + " offers " + std::to_string(copies.size())
               + " copies of a page of which there are " + std::to_string(held);
      for (const auto& copy : copies) {
        const auto holder = static_cast<uint32_t>(table.find(copy.member)->member - 1);
        const auto is = announced(holder, id_of(key));
        if (!is || !holds(holder, id_of(key)) || copy.offset != is->offset
            || copy.generation != is->generation)
          return "a page is offered where it is not";
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> index_world::difference_of_counts() const {
  struct counts {
    uint64_t replicas = 0;
    uint64_t second_replicas = 0;
    uint64_t keys = 0;
    uint64_t second_keys = 0;
    bool operator==(const counts&) const = default;
  };
  auto expected = std::vector<counts>(shard_count());
  const auto add = [&](page_id id, uint64_t replicas) {
    const auto [first, second] = keepers(id);
    expected[first].replicas += replicas;
    expected[second].replicas += replicas;
    expected[second].second_replicas += replicas;
    expected[first].keys += 1;
    expected[second].keys += 1;
    expected[second].second_keys += 1;
  };
  for (auto m = uint32_t{0}; m < members_.size(); ++m) {
    const auto& pages = members_[m].pages;
    for (auto page = pages.first(); page < pages.last(); ++page)
      if (const auto held = holders(id_of(m, page)); held > 0)
        add(id_of(m, page), held);
  }
  const auto living = static_cast<uint64_t>(
    std::ranges::count(members_, member_fate::alive, &simulated_member::fate));
  for (auto s = uint32_t{0}; s < shard_count(); ++s) {
    const auto found = shards_[s].table.counters();
    const auto is = counts{found.replicas, found.second_replicas, found.keys, found.second_keys};
    if (is != expected[s] || found.members != living || found.refused != 0)
      return "shard " + std::to_string(s) + " offers " + std::to_string(is.replicas) + " pages, "
             + std::to_string(is.second_replicas) + " as the second keeper, of "
             + std::to_string(found.members) + " members; expected "
             + std::to_string(expected[s].replicas) + ", "
             + std::to_string(expected[s].second_replicas) + " of " + std::to_string(living);
  }
  return std::nullopt;
}

std::optional<std::string> index_world::difference_of_routes() const {
  for (const auto& who : members_) {
    if (who.fate != member_fate::alive)
      continue;
    for (auto m = size_t{0}; m < members_.size(); ++m)
      if (who.routes.offered[m] && !who.routes.known[m] && members_[m].fate == member_fate::alive)
        return "member " + std::to_string(who.info.member) + " does not know member "
               + std::to_string(m + 1) + ", which was offered to it";
  }
  return std::nullopt;
}

std::optional<std::string> index_world::difference_of_lists(std::span<const uint32_t> asked) const {
  for (const auto m : asked) {
    const auto& who = members_[m];
    auto listed = std::vector<bool>(members_.size());
    for (const auto& info : who.listing.members)
      listed[info.member - 1] = true;
    for (auto i = size_t{0}; i < members_.size(); ++i)
      if (const auto lives = members_[i].fate == member_fate::alive;
          listed[i] != lives || who.routes.known[i] != lives)
        return "member " + std::to_string(m + 1) + (lives ? " does not know" : " still knows")
               + " member " + std::to_string(i + 1);
  }
  return std::nullopt;
}

std::pair<uint64_t, uint64_t> index_world::ill_copied() const {
  auto few = uint64_t{0};
  auto many = uint64_t{0};
  for (auto m = uint32_t{0}; m < members_.size(); ++m) {
    const auto& pages = members_[m].pages;
    for (auto page = pages.first(); page < pages.last(); ++page) {
      const auto held = holders(id_of(m, page));
      few += held > 0 && held < load_.copies ? 1 : 0;
      many += held > load_.copies ? 1 : 0;
    }
  }
  return {few, many};
}

} // namespace hicache::bench
