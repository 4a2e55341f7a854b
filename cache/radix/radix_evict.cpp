// Eviction in radix_tree.

#include "base/check.hpp"
#include "cache/radix/radix_tree.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

std::optional<std::vector<page_index>> radix_tree::take_l1(uint64_t count) {
  if (const auto free = l1_pool_.free(); free < count) {
    if (count > free + totals_.l1_evictable + pending_write_backs_)
      return std::nullopt;
    // Pending write-backs need not be evicted again.
    if (const auto missing = count - free; missing > pending_write_backs_)
      evict_l1(missing - pending_write_backs_);
  }
  return l1_pool_.take(count);
}

std::optional<std::vector<page_index>> radix_tree::take_l2(uint64_t count) {
  if (count > l2_available())
    return std::nullopt;
  if (const auto free = l2_pool_.free(); free < count)
    evict_l2(count - free);
  return l2_pool_.take(count);
}

uint64_t radix_tree::l2_available() const noexcept {
  const auto evictable = totals_.l2_evictable;
  return l2_pool_.free() + evictable - std::min(evictable, l2_pool_.held_in_use());
}

/// Prefetches upcoming victims into the CPU cache. In a large tree the misses would dominate
/// eviction; a small tree is in the cache anyway.
void radix_tree::prefetch_victims(const eviction_order& order) {
  constexpr auto large_tree = size_t{1} << 14;
  if (order.size() < large_tree)
    return;
  constexpr auto nodes_ahead = 4;
  constexpr auto parts_ahead = 2;
  auto next = order.begin();
  for (auto i = 0; i <= nodes_ahead && next != order.end(); ++i, ++next) {
    const auto* node = next->node;
    if (i == nodes_ahead)
      for (auto line = size_t{0}; line < sizeof(radix_node); line += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(node) + line);
    if (i == parts_ahead) {
      __builtin_prefetch(node->tokens_.data());
      __builtin_prefetch(node->l1_pages_.data());
      __builtin_prefetch(node->parent_);
    }
  }
}

uint64_t radix_tree::evict_l1(uint64_t count) {
  const auto free = l1_pool_.free();
  const auto pending_write_backs = pending_write_backs_;
  const auto gone
    = [&] { return l1_pool_.free() - free + pending_write_backs_ - pending_write_backs; };
  while (gone() < count && !l1_leaves_.empty()) {
    prefetch_victims(l1_leaves_);
    evict_l1_tail(*l1_leaves_.begin()->node, count - gone());
  }
  const auto freed = l1_pool_.free() - free;
  evicted_l1_ += freed;
  return freed;
}

uint64_t radix_tree::evict_l2(uint64_t count) {
  const auto free = l2_pool_.free();
  const auto freed = [&] { return l2_pool_.free() - free; };
  while (freed() < count && !l2_victims_.empty())
    evicted_l2_ += evict_l2_tail(*l2_victims_.begin()->node, count - freed());
  return freed();
}

/// Evicts at most `most` pages from the end of a leaf of the L1 part.
void radix_tree::evict_l1_tail(radix_node& node, uint64_t most) {
  const auto count = std::min(most, node.pages_);
  const auto kept = node.pages_ - count;
  if (node.l2_resident()) {
    if (kept > 0)
      split(node, kept);
    demote(node);
    return;
  }
  HICACHE_CHECK(node.l2_pages_.empty() && node.l2_locks_ == 0);
  const auto saved = save_ && is_worth_saving_(node) ? write_back_for(node, count) : 0;
  if (saved < count) {
    // These pages are lost, so the nodes below become unreachable.
    drop_descendants(node);
    truncate(node, kept + saved);
  }
  if (saved > 0)
    save_tail(node, kept);
}

/// Evicts from L2 what precedes a leaf of the L1 part in the eviction order of both tiers together:
/// copies of L1 pages, nodes that rank below it, and nodes below it in the tree. If L2 is exported,
/// copies have no precedence.
/// @returns how many of the wanted pages are free.
uint64_t radix_tree::write_back_for(radix_node& node, uint64_t wanted) {
  const auto place = order_entry{node.record_.l1_key, &node};
  while (l2_pool_.free() < wanted && !l2_victims_.empty()) {
    const auto& victim = *l2_victims_.begin();
    if (node.l2_children_ == 0 && place < victim)
      break;
    evicted_l2_ += evict_l2_tail(*victim.node, wanted - l2_pool_.free());
  }
  return std::min(wanted, l2_pool_.free());
}

/// Begins to save all but the first `kept` pages of a node that leaves L1.
/// @pre L2 has room
void radix_tree::save_tail(radix_node& node, uint64_t kept) {
  if (kept > 0)
    split(node, kept);
  auto pages = l2_pool_.take(node.pages_);
  node.is_write_back_pending_ = true;
  pending_write_backs_ += node.pages_;
  save_(node, std::move(*pages));
}

/// Frees a node's L1 pages; L2 has them.
void radix_tree::demote(radix_node& node) {
  const auto edit = node_edit{*this, node};
  release_l1(node, 0);
  want_join(node);
}

void radix_tree::finish_write_back(radix_node& node) {
  HICACHE_CHECK(node.l2_resident());
  const auto edit = node_edit{*this, node};
  node.is_write_back_pending_ = false;
  pending_write_backs_ -= node.pages_;
  if (node.l1_locks_ == 0 && node.l1_children_ == 0) {
    evicted_l1_ += node.pages_;
    release_l1(node, 0);
    want_join(node);
  }
}

void radix_tree::drop_unsaved(radix_node& node) {
  node.is_write_back_pending_ = false;
  pending_write_backs_ -= node.pages_;
  changed(node);
  if (node.l1_locks_ > 0 || node.l1_children_ > 0)
    return;
  evicted_l1_ += node.pages_;
  drop_descendants(node);
  truncate(node, 0);
}

/// Evicts at most `most` pages from the end of an L2 victim. Held ones become free later.
/// @returns how many.
uint64_t radix_tree::evict_l2_tail(radix_node& node, uint64_t most) {
  const auto count = std::min(most, node.pages_);
  const auto kept = node.pages_ - count;
  if (node.in_l1()) {
    if (kept > 0)
      split(node, kept);
    const auto edit = node_edit{*this, node};
    release_l2(node, 0);
    if (options_.exports_l2 && node.l3_ == l3_state::stored)
      node.l3_ = l3_state::unknown;
    return count;
  }
  truncate(node, kept);
  return count;
}

/// Truncates a childless node to its first `pages` pages; removes it for 0.
void radix_tree::truncate(radix_node& node, uint64_t pages) {
  HICACHE_CHECK(node.children_.empty());
  node.token_digest_ -= sum_tokens(node, pages, node.pages_);
  release_l1(node, pages);
  release_l2(node, pages);
  if (pages == 0)
    return remove(node);
  node.tokens_.truncate(span_size(pages));
  node.names_.count = std::min(node.names_.count, pages);
  node.event_names_.count = std::min(node.event_names_.count, pages);
  node.pages_ = pages;
  changed(node);
}

void radix_tree::release_l1(radix_node& node, uint64_t from) {
  if (!node.in_l1())
    return;
  emit_removed(cache_medium::l1, node, from);
  node.l1_digest_ -= sum_l1(node, from, node.pages_);
  l1_pool_.give_back(std::span{node.l1_pages_}.subspan(from));
  node.l1_pages_.resize(from);
}

void radix_tree::release_l2(radix_node& node, uint64_t from) {
  if (node.l2_pages_.empty())
    return;
  emit_removed(cache_medium::l2, node, from);
  l2_pool_.give_back(std::span{node.l2_pages_}.subspan(from));
  node.l2_pages_.resize(from);
}

/// All nodes below this one, parents first.
std::vector<radix_node*> radix_tree::descendants(const radix_node& node) {
  auto list = std::vector<radix_node*>{};
  const auto append_children = [&list](const radix_node& parent) {
    const auto begin = list.size();
    parent.children_.visit(
      [&list](const first_page&, radix_node& child) { list.push_back(&child); });
    // The order determines which L2 page is allocated next.
    std::ranges::sort(std::span{list}.subspan(begin), {}, &radix_node::id);
  };
  append_children(node);
  for (auto i = size_t{0}; i < list.size(); ++i)
    append_children(*list[i]);
  return list;
}

/// Removes everything below a leaf of the L1 part: nodes that are only in L2.
void radix_tree::drop_descendants(radix_node& node) {
  const auto list = descendants(node);
  for (auto each = list.rbegin(); each != list.rend(); ++each) {
    HICACHE_CHECK(!(*each)->in_l1() && (*each)->l2_resident());
    evicted_l2_ += (*each)->pages_;
    truncate(**each, 0);
  }
}

} // namespace hicache
