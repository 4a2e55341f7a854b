#include "actors/offered_pages.hpp"

#include "base/check.hpp"
#include "messages/index_protocol.hpp"

namespace hicache {

namespace {

stored_page stored(const disk_table::listed_page& page) {
  return {page.key,
          disk_offset | page.position,
          0,
          page.on_disk.length,
          page.on_disk.length,
          page.on_disk.fingerprint};
}

} // namespace

std::optional<stored_page> offered_pages::export_page(const stored_page& page) {
  auto before = revoke(page.key);
  HICACHE_CHECK(exported_.emplace(page.offset, page).second);
  places_.emplace(page.key, page.offset);
  return before;
}

std::optional<stored_page> offered_pages::revoke(const page_key& key) {
  auto gone = find_exported(key);
  if (gone) {
    exported_.erase(gone->offset);
    places_.erase(key);
  }
  return gone;
}

std::optional<stored_page> offered_pages::find_exported(const page_key& key) const {
  const auto at = places_.find(key);
  return at == places_.end() ? std::nullopt : std::optional{exported_.at(at->second)};
}

std::optional<stored_page> offered_pages::find(const page_key& key) const {
  auto stored = table_.find(key);
  return stored ? stored : find_exported(key);
}

std::optional<stored_page> offered_pages::find_anywhere(const page_key& key) const {
  if (auto here = find(key))
    return here;
  const auto on_disk = disk() ? disk()->find(key) : std::nullopt;
  return on_disk ? std::optional{stored({key, *on_disk, 0})} : std::nullopt;
}

std::vector<stored_page> offered_pages::published(uint64_t offset, size_t count) const {
  auto pages = table_.published(offset, count);
  for (auto at = exported_.lower_bound(offset); at != exported_.end() && pages.size() < count; ++at)
    pages.push_back(at->second);
  auto next = is_on_disk(offset) ? offset & ~disk_offset : 0;
  while (disk() && pages.size() < count) {
    const auto part = disk()->list(next, count - pages.size());
    if (part.empty())
      break;
    for (const auto& page : part)
      if (!find(page.key))
        pages.push_back(stored(page));
    next = part.back().position + 1;
  }
  return pages;
}

std::vector<page_key> offered_pages::of_namespace(uint64_t fingerprint) const {
  auto keys = table_.of_namespace(fingerprint);
  for (const auto& [offset, page] : exported_)
    if (page.fingerprint == fingerprint)
      keys.push_back(page.key);
  return keys;
}

} // namespace hicache
