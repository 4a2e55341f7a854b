#include "cache/radix_tree.hpp"

#include "base/check.hpp"
#include "cache/mix.hpp"
#include "cache/page_hash.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace hicache {

namespace {

/// Moves elements [from, end) of `list` into a list of their own.
template <class T>
std::vector<T> take_tail(std::vector<T>& list, uint64_t from) {
  if (list.empty())
    return {};
  auto tail = std::vector<T>(list.begin() + static_cast<ptrdiff_t>(from), list.end());
  list.resize(from);
  return tail;
}

/// Leading pages that are equal. The first one is: a map found it.
uint64_t equal_pages(const token_id* a, const token_id* b, uint64_t limit, uint32_t page_size) {
  auto count = uint64_t{1};
  while (count < limit
         && std::memcmp(a + count * page_size, b + count * page_size, page_size * sizeof(token_id))
              == 0)
    ++count;
  return count;
}

uint64_t hash_namespace(const cache_namespace& ns) {
  return mix(XXH3_64bits(ns.extra_key.data(), ns.extra_key.size()),
             XXH3_64bits(ns.salt.data(), ns.salt.size()));
}

} // namespace

size_t first_page_hash::operator()(const first_page& page) const noexcept {
  return XXH3_64bits(page.tokens, page.page_size * sizeof(token_id));
}

radix_tree::radix_tree(uint32_t page_size, uint32_t device_pages, uint32_t host_pages,
                       bool name_pages)
  : page_size_(page_size), name_pages_(name_pages), device_pool_(device_pages),
    host_pool_(host_pages) {
  HICACHE_CHECK(page_size > 0);
}

// -- structure ----------------------------------------------------------------

radix_node& radix_tree::make_node() {
  auto owner = std::make_unique<radix_node>();
  owner->id = ++last_id_;
  return *nodes_.emplace(owner->id, std::move(owner)).first->second;
}

radix_node& radix_tree::root(const cache_namespace& ns) {
  auto [entry, is_new] = roots_.try_emplace(ns, nullptr);
  if (is_new) {
    auto& node = make_node();
    entry->second = &node;
    node.ns = &entry->first;
    node.last_access = clock_;
    node.token_digest = hash_namespace(ns);
    if (const auto seed = namespace_seed(ns); seed && name_pages_)
      node.keys.push_back(*seed);
    changed(node);
  }
  return *entry->second;
}

radix_node* radix_tree::find_root(const cache_namespace& ns) noexcept {
  const auto entry = roots_.find(ns);
  return entry == roots_.end() ? nullptr : entry->second;
}

path_end radix_tree::walk(radix_node& start, std::span<const token_id> tokens,
                          uint64_t limit) const {
  HICACHE_CHECK(limit <= tokens.size() / page_size_);
  auto end = path_end{&start, start.end()};
  while (end.pages < limit) {
    const auto* wanted = tokens.data() + end.pages * page_size_;
    const auto child = end.node->children.find(first_page{wanted, page_size_});
    if (child == end.node->children.end())
      break;
    auto& node = *child->second;
    end.node = &node;
    end.pages += equal_pages(wanted, node.tokens.data(), std::min(node.pages, limit - end.pages),
                             page_size_);
    if (end.pages < node.end())
      break;
  }
  return end;
}

radix_node& radix_tree::cut(const path_end& end) {
  return end.pages == end.node->end() ? *end.node : split(*end.node, end.pages - end.node->first);
}

radix_node& radix_tree::add(radix_node& parent, token_span tokens, std::vector<page_index> device,
                            std::vector<page_index> host, std::vector<page_key> keys, l3_state l3) {
  HICACHE_CHECK(tokens.size() > 0 && tokens.size() % page_size_ == 0);
  auto& node = make_node();
  node.parent = &parent;
  node.tokens = std::move(tokens);
  node.first = parent.end();
  node.pages = node.tokens.size() / page_size_;
  HICACHE_CHECK(!device.empty() || !host.empty());
  HICACHE_CHECK(device.empty() || parent.on_device() || parent.is_root());
  HICACHE_CHECK(keys.size() == (name_pages_ ? node.pages : 0));
  node.host = std::move(host);
  node.keys = std::move(keys);
  node.l3 = l3;
  node.last_access = clock_;
  node.token_digest = sum_tokens(node, 0, node.pages);
  if (!device.empty()) {
    node.device = std::move(device);
    node.device_digest = sum_device(node, 0, node.pages);
  }
  const auto is_new
    = parent.children.emplace(first_page{node.tokens.data(), page_size_}, &node).second;
  HICACHE_CHECK(is_new);
  changed(node);
  return node;
}

void radix_tree::set_device(radix_node& node, std::vector<page_index> pages) {
  HICACHE_CHECK(!node.on_device() && pages.size() == node.pages);
  node.device = std::move(pages);
  node.device_digest = sum_device(node, 0, node.pages);
  changed(node);
}

/// The new node becomes the upper part, so that whoever holds `node` as the end of a path still
/// does. The upper part inherits all marks: what finishes on the lower part by walking up its path
/// finishes on both.
radix_node& radix_tree::split(radix_node& node, uint64_t pages) {
  HICACHE_CHECK(pages > 0 && pages < node.pages);
  auto& upper = make_node();
  const auto lower_is_smaller = node.pages - pages < pages;
  const auto from = lower_is_smaller ? pages : 0;
  const auto to = lower_is_smaller ? node.pages : pages;
  const auto tokens_part = sum_tokens(node, from, to);
  const auto device_part = sum_device(node, from, to);
  upper.token_digest = lower_is_smaller ? node.token_digest - tokens_part : tokens_part;
  upper.device_digest = lower_is_smaller ? node.device_digest - device_part : device_part;
  node.token_digest -= upper.token_digest;
  node.device_digest -= upper.device_digest;
  upper.parent = node.parent;
  upper.first = node.first;
  upper.pages = pages;
  node.first += pages;
  node.pages -= pages;
  upper.tokens = node.tokens.cut_front(pages * page_size_);
  upper.device = std::move(node.device);
  node.device = take_tail(upper.device, pages);
  upper.host = std::move(node.host);
  node.host = take_tail(upper.host, pages);
  upper.keys = std::move(node.keys);
  node.keys = take_tail(upper.keys, pages);
  upper.device_locks = node.device_locks;
  upper.host_locks = node.host_locks;
  upper.last_access = node.last_access;
  upper.hits = node.hits;
  upper.write = node.write;
  upper.load = node.load;
  upper.backup = node.backup;
  upper.l3 = node.l3;
  // The upper part shares the buffer, so the parent's key still looks at its first page.
  upper.parent->children.find(first_page{upper.tokens.data(), page_size_})->second = &upper;
  upper.children.emplace(first_page{node.tokens.data(), page_size_}, &node);
  node.parent = &upper;
  upper.record.on_device = node.record.on_device;
  upper.record.on_host = node.record.on_host;
  upper.device_children = node.record.on_device ? 1 : 0;
  upper.host_children = node.record.on_host ? 1 : 0;
  changed(upper);
  changed(node);
  return upper;
}

void radix_tree::remove(radix_node& node) {
  HICACHE_CHECK(node.children.empty() && node.device_locks == 0 && node.host_locks == 0);
  HICACHE_CHECK(node.device.empty() && node.host.empty());
  changed(node);
  totals_.digest -= node.record.digest;
  auto& parent = *node.parent;
  parent.children.erase(first_page{node.tokens.data(), page_size_});
  nodes_.erase(node.id);
  drop_unused_root(parent);
}

void radix_tree::drop_unused_root(radix_node& node) {
  if (!node.is_root() || !node.children.empty() || node.device_locks > 0 || node.host_locks > 0)
    return;
  totals_.digest -= node.record.digest;
  roots_.erase(roots_.find(*node.ns));
  nodes_.erase(node.id);
}

// -- use ----------------------------------------------------------------------

void radix_tree::touch(radix_node& node, uint64_t hits) {
  for (auto* each = &node; each != nullptr; each = each->parent) {
    each->last_access = clock_;
    each->hits += hits;
    changed(*each);
  }
}

void radix_tree::lock_device(radix_node& node) {
  for (auto* each = &node; each != nullptr; each = each->parent) {
    ++each->device_locks;
    changed(*each);
  }
}

void radix_tree::unlock_device(radix_node& node) {
  auto* top = &node;
  for (auto* each = &node; each != nullptr; each = each->parent) {
    HICACHE_CHECK(each->device_locks > 0);
    --each->device_locks;
    changed(*each);
    top = each;
  }
  drop_unused_root(*top);
}

void radix_tree::lock_host(radix_node& node) {
  for (auto* each = &node; each != nullptr; each = each->parent) {
    ++each->host_locks;
    changed(*each);
  }
}

void radix_tree::unlock_host(radix_node& node) {
  auto* top = &node;
  for (auto* each = &node; each != nullptr; each = each->parent) {
    HICACHE_CHECK(each->host_locks > 0);
    --each->host_locks;
    changed(*each);
    top = each;
  }
  drop_unused_root(*top);
}

// -- bookkeeping --------------------------------------------------------------

uint64_t radix_tree::sum_tokens(const radix_node& node, uint64_t from, uint64_t to) const {
  auto sum = uint64_t{0};
  const auto page_bytes = page_size_ * sizeof(token_id);
  for (auto i = from; i < to; ++i)
    sum += mix(node.first + i, XXH3_64bits(node.tokens.data() + i * page_size_, page_bytes));
  return sum;
}

uint64_t radix_tree::sum_device(const radix_node& node, uint64_t from, uint64_t to) const {
  auto sum = uint64_t{0};
  for (auto i = from; i < to && !node.device.empty(); ++i)
    sum += mix(node.first + i, node.device[i]);
  return sum;
}

node_record radix_tree::desired_record(const radix_node& node) const {
  auto record = node_record{};
  record.on_device = node.on_device();
  record.on_host = !node.host.empty();
  if (record.on_device)
    (node.device_locks == 0 ? record.device_evictable : record.device_protected) = node.pages;
  if (record.on_device && node.device_locks == 0 && node.device_children == 0)
    record.device_rank = node.last_access;
  if (node.host_resident() && node.host_locks == 0) {
    record.host_evictable = node.pages;
    if (node.host_children == 0)
      record.host_rank = node.last_access;
  }
  const auto parent = node.is_root() ? node_id{0} : node.parent->id;
  const auto state = std::array<uint64_t, 14>{node.id,
                                              parent,
                                              node.first,
                                              node.pages,
                                              node.token_digest,
                                              node.device_digest,
                                              node.host.size(),
                                              uint64_t{node.device_locks} << 32 | node.host_locks,
                                              node.last_access,
                                              node.hits,
                                              static_cast<uint64_t>(node.l3),
                                              node.write,
                                              node.load,
                                              node.backup};
  record.digest = XXH3_64bits(state.data(), sizeof(state));
  return record;
}

void radix_tree::reorder(lru_order& order, radix_node& node, uint64_t& rank, uint64_t next_rank) {
  if (rank == next_rank)
    return;
  if (rank != 0)
    order.erase(lru_entry{rank, &node, node.id});
  if (next_rank != 0)
    order.insert(lru_entry{next_rank, &node, node.id});
  rank = next_rank;
}

void radix_tree::changed(radix_node& node) {
  auto& record = node.record;
  const auto next = desired_record(node);
  totals_.device_evictable += next.device_evictable - record.device_evictable;
  totals_.device_protected += next.device_protected - record.device_protected;
  totals_.host_evictable += next.host_evictable - record.host_evictable;
  totals_.digest += next.digest - record.digest;
  reorder(device_leaves_, node, record.device_rank, next.device_rank);
  reorder(host_leaves_, node, record.host_rank, next.host_rank);
  const auto tiers_changed = record.on_device != next.on_device || record.on_host != next.on_host;
  if (tiers_changed && !node.is_root()) {
    // Unsigned arithmetic wraps, so this adds one, nothing, or minus one.
    node.parent->device_children += uint32_t{next.on_device} - uint32_t{record.on_device};
    node.parent->host_children += uint32_t{next.on_host} - uint32_t{record.on_host};
  }
  record = next;
  if (tiers_changed && !node.is_root())
    changed(*node.parent);
}

uint64_t radix_tree::digest() const noexcept {
  return mix(mix(totals_.digest, device_pool_.digest()),
             mix(mix(host_pool_.free(), clock_), last_id_));
}

std::vector<radix_node*> radix_tree::sorted_nodes() const {
  auto list = std::vector<radix_node*>{};
  list.reserve(nodes_.size());
  for (const auto& [id, node] : nodes_)
    list.push_back(node.get());
  std::sort(list.begin(), list.end(), [](const auto* a, const auto* b) { return a->id < b->id; });
  return list;
}

} // namespace hicache
