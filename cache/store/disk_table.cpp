#include "cache/store/disk_table.hpp"

#include <algorithm>

namespace hicache {

bool disk_table::add(const page_key& key, const page& added) {
  const auto guard = std::lock_guard{mutex_};
  const auto [entry, is_new] = part_of(key).try_emplace(key, added);
  entry->second.listing = added.listing;
  if (is_new) {
    ++size_;
    bytes_ += added.length;
  }
  return is_new;
}

bool disk_table::remove(const page_key& key) {
  const auto guard = std::lock_guard{mutex_};
  auto& pages = part_of(key);
  const auto found = pages.find(key);
  if (found == pages.end())
    return false;
  --size_;
  bytes_ -= found->second.length;
  pages.erase(found);
  return true;
}

std::optional<disk_table::page> disk_table::find(const page_key& key) const {
  const auto guard = std::lock_guard{mutex_};
  const auto& pages = parts_[part_at(position_of(key))];
  const auto found = pages.find(key);
  return found == pages.end() ? std::nullopt : std::optional{found->second};
}

std::vector<disk_table::listed_page> disk_table::list(uint64_t from, size_t count) const {
  const auto guard = std::lock_guard{mutex_};
  auto listed = std::vector<listed_page>{};
  for (auto at = part_at(from); at < parts_.size() && listed.size() < count; ++at) {
    const auto first = static_cast<ptrdiff_t>(listed.size());
    for (const auto& [key, on_disk] : parts_[at])
      if (const auto position = position_of(key); position >= from)
        listed.push_back({key, on_disk, position});
    std::ranges::sort(listed.begin() + first, listed.end(), {}, &listed_page::position);
  }
  if (listed.size() <= count || count == 0)
    return listed;
  const auto end
    = std::ranges::upper_bound(listed, listed[count - 1].position, {}, &listed_page::position);
  listed.erase(end, listed.end());
  return listed;
}

std::optional<uint64_t> disk_table::remove_unlisted(uint32_t listing, uint64_t from, size_t count,
                                                    std::vector<page_key>& removed) {
  const auto pages = list(from, count);
  for (const auto& [key, on_disk, position] : pages)
    if (on_disk.listing != listing && remove(key))
      removed.push_back(key);
  return pages.empty() ? std::nullopt : std::optional{pages.back().position + 1};
}

uint64_t disk_table::size() const {
  const auto guard = std::lock_guard{mutex_};
  return size_;
}

uint64_t disk_table::bytes() const {
  const auto guard = std::lock_guard{mutex_};
  return bytes_;
}

} // namespace hicache
