// Eviction in radix_tree: who goes, how much of it, and what goes with it.

#include "base/check.hpp"
#include "cache/radix_tree.hpp"

#include <algorithm>

namespace hicache {

std::optional<std::vector<page_index>> radix_tree::take_device(uint64_t count) {
  if (count > device_pool_.free() + totals_.device_evictable)
    return std::nullopt;
  while (device_pool_.free() < count) {
    HICACHE_CHECK(!device_leaves_.empty());
    evicted_device_
      += evict_device_tail(*device_leaves_.begin()->node, count - device_pool_.free());
  }
  return device_pool_.take(count);
}

std::optional<std::vector<page_index>> radix_tree::take_host(uint64_t count) {
  if (count > host_pool_.free() + totals_.host_evictable)
    return std::nullopt;
  while (host_pool_.free() < count) {
    HICACHE_CHECK(!host_leaves_.empty());
    evicted_host_ += evict_host_tail(*host_leaves_.begin()->node, count - host_pool_.free());
  }
  return host_pool_.take(count);
}

/// Frees at most `most` pages from the end of a leaf of the device part.
/// @returns how many.
uint64_t radix_tree::evict_device_tail(radix_node& node, uint64_t most) {
  const auto count = std::min(most, node.pages);
  const auto kept = node.pages - count;
  if (node.host_resident()) {
    // Demotion: the pages stay, on the host.
    if (kept > 0)
      split(node, kept);
    release_device(node, 0);
    changed(node);
    return count;
  }
  // Nothing keeps these pages, so what hangs below them cannot be reached any more.
  HICACHE_CHECK(node.host.empty() && node.host_locks == 0);
  drop_descendants(node);
  truncate(node, kept);
  return count;
}

/// Frees at most `most` pages from the end of a leaf of the host part.
/// @returns how many.
uint64_t radix_tree::evict_host_tail(radix_node& node, uint64_t most) {
  const auto count = std::min(most, node.pages);
  const auto kept = node.pages - count;
  if (node.on_device()) {
    if (kept > 0)
      split(node, kept);
    release_host(node, 0);
    changed(node);
    return count;
  }
  truncate(node, kept);
  return count;
}

/// Cuts a node without children to its first `pages` pages; to none: removes it.
void radix_tree::truncate(radix_node& node, uint64_t pages) {
  HICACHE_CHECK(node.children.empty());
  node.token_digest -= sum_tokens(node, pages, node.pages);
  release_device(node, pages);
  release_host(node, pages);
  if (pages == 0)
    return remove(node);
  node.tokens.truncate(pages * page_size_);
  node.keys.resize(name_pages_ ? pages : 0);
  node.pages = pages;
  changed(node);
}

void radix_tree::release_device(radix_node& node, uint64_t from) {
  if (!node.on_device())
    return;
  node.device_digest -= sum_device(node, from, node.pages);
  device_pool_.give_back(std::span{node.device}.subspan(from));
  node.device.resize(from);
}

void radix_tree::release_host(radix_node& node, uint64_t from) {
  if (node.host.empty())
    return;
  host_pool_.give_back(std::span{node.host}.subspan(from));
  node.host.resize(from);
}

/// Removes everything below a leaf of the device part: nodes that are on the host only.
void radix_tree::drop_descendants(radix_node& node) {
  auto list = std::vector<radix_node*>{};
  const auto append_children = [&list](const radix_node& parent) {
    const auto begin = list.size();
    for (const auto& [page, child] : parent.children)
      list.push_back(child);
    // The order decides which host page is handed out next.
    std::sort(list.begin() + static_cast<ptrdiff_t>(begin), list.end(),
              [](const auto* a, const auto* b) { return a->id < b->id; });
  };
  append_children(node);
  for (auto i = size_t{0}; i < list.size(); ++i)
    append_children(*list[i]);
  for (auto each = list.rbegin(); each != list.rend(); ++each) {
    HICACHE_CHECK(!(*each)->on_device() && (*each)->host_resident());
    evicted_host_ += (*each)->pages;
    truncate(**each, 0);
  }
}

} // namespace hicache
