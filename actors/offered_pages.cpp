#include "actors/offered_pages.hpp"

#include "base/check.hpp"

namespace hicache {

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

std::vector<stored_page> offered_pages::published(uint64_t offset, size_t count) const {
  auto pages = table_.published(offset, count);
  for (auto at = exported_.lower_bound(offset); at != exported_.end() && pages.size() < count; ++at)
    pages.push_back(at->second);
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
