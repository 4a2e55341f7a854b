#pragma once

#include "cache/hash/page_names.hpp"
#include "cache/radix/radix_children.hpp"
#include "cache/radix/token_span.hpp"
#include "hicache/eviction_policy.hpp"
#include "hicache/ids.hpp"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace hicache {

/// What is known about a node's pages in L3.
enum class l3_state : uint8_t { unknown, pending, stored };

/// A node's position in an eviction order; the smallest is evicted first.
struct order_key {
  static constexpr uint8_t absent = 0xff;

  uint8_t group = absent;
  eviction_rank rank;

  bool is_present() const noexcept { return group != absent; }

  friend auto operator<=>(const order_key&, const order_key&) = default;
};

/// A node's current contribution to the tree's sums and eviction orders.
struct node_record {
  uint64_t l1_evictable = 0;
  uint64_t l1_protected = 0;
  order_key l1_key;
  bool in_l1 = false;
  bool in_l2 = false;
  bool is_copy = false;
  order_key l2_key;
  uint64_t l2_evictable = 0;
  uint64_t digest = 0;

  friend bool operator==(const node_record&, const node_record&) = default;
};

class node_edit;
class radix_tree;

/// A run of whole pages that share one path from the root. Modified only through radix_tree and
/// node_edit, which keep sums, eviction orders and digest up to date.
class radix_node {
public:
  /// Null for the root of a namespace, which holds no pages.
  radix_node* parent() const noexcept { return parent_; }

  node_id id() const noexcept { return id_; }

  /// Pages before this node on its path.
  uint64_t first() const noexcept { return first_; }

  uint64_t pages() const noexcept { return pages_; }

  /// End of the node on its path, in pages.
  uint64_t end() const noexcept { return first_ + pages_; }

  const token_span& tokens() const noexcept { return tokens_; }

  const radix_children& children() const noexcept { return children_; }

  /// L1 pages: none, or one per page.
  const std::vector<page_index>& l1_pages() const noexcept { return l1_pages_; }

  /// L2 pages: none, or one per page. Only reserved while `write` is set.
  const std::vector<page_index>& l2_pages() const noexcept { return l2_pages_; }

  const node_use& use() const noexcept { return use_; }

  /// Locks on this node and everything below it.
  uint32_t l1_locks() const noexcept { return l1_locks_; }

  uint32_t l2_locks() const noexcept { return l2_locks_; }

  /// Children with pages in L2.
  uint32_t l2_children() const noexcept { return l2_children_; }

  /// Pins and session references that end here or below.
  uint32_t pins() const noexcept { return pins_; }

  uint32_t references() const noexcept { return references_; }

  /// Operations in flight on the node's pages, or 0.
  operation_id write() const noexcept { return write_; }

  operation_id load() const noexcept { return load_; }

  operation_id backup() const noexcept { return l3_ == l3_state::pending ? l3_mark_ : 0; }

  l3_state l3() const noexcept { return l3_; }

  /// Where L3 has the pages: the logical time, in nanoseconds, after which it wrote or read them.
  int64_t stored_ns() const noexcept {
    return l3_ == l3_state::stored ? static_cast<int64_t>(l3_mark_) : 0;
  }

  /// True if the L1 pages are freed once `write` is confirmed (write_back).
  bool is_write_back_pending() const noexcept { return is_write_back_pending_; }

  /// True if the pins hold an L1 lock because no other tier has the pages.
  bool has_pin_lock() const noexcept { return has_pin_lock_; }

  /// True if the pages hold no valid bytes: walks skip the node, and its last unlock frees it.
  bool is_discarded() const noexcept { return is_discarded_; }

  bool is_root() const noexcept { return parent_ == nullptr; }

  /// False for roots, and for the topmost of the nodes that were discarded together.
  bool is_child() const noexcept {
    return !is_root() && (!is_discarded_ || parent_->is_discarded_);
  }

  bool in_l1() const noexcept { return !l1_pages_.empty(); }

  /// True if its L2 pages are, or will be, copies of its L1 pages.
  bool is_copy() const noexcept { return in_l1() && !l2_pages_.empty(); }

  /// True if L2 holds the pages; reserved pages do not count yet.
  bool l2_resident() const noexcept { return !l2_pages_.empty() && write_ == 0; }

  const radix_node& root() const noexcept {
    const auto* node = this;
    while (!node->is_root())
      node = node->parent_;
    return *node;
  }

  const cache_namespace& ns() const noexcept { return *root().ns_; }

  /// The last node in L1 on the path to this one; may be the root.
  radix_node& l1_end() noexcept {
    auto* node = this;
    while (!node->is_root() && !node->in_l1())
      node = node->parent_;
    return *node;
  }

  /// The part of the digest that changes with every operation.
  uint64_t light_digest() const noexcept;

private:
  friend class node_edit;
  friend class radix_tree;

  // Fields for locking and touching a path come first, to share few cache lines.

  radix_node* parent_ = nullptr;
  /// Factor of the light part of the digest.
  uint64_t salt_ = 0;
  uint32_t l1_locks_ = 0;
  uint32_t l2_locks_ = 0;
  uint32_t l1_children_ = 0;
  uint32_t l2_children_ = 0;
  /// Children on both tiers.
  uint32_t copy_children_ = 0;
  uint64_t first_ = 0;
  uint64_t pages_ = 0;
  std::vector<page_index> l1_pages_;
  node_record record_;
  node_use use_;
  uint32_t pins_ = 0;
  uint32_t references_ = 0;
  token_span tokens_;
  radix_children children_;

  node_id id_ = 0;
  operation_id write_ = 0;
  operation_id load_ = 0;
  /// By `l3_`: the backup in flight, or when the pages were stored.
  uint64_t l3_mark_ = 0;
  l3_state l3_ = l3_state::unknown;
  bool is_write_back_pending_ = false;
  /// An engine knows its id.
  bool has_handle_ = false;
  bool has_pin_lock_ = false;
  bool is_discarded_ = false;
  std::vector<page_index> l2_pages_;
  /// One per page, once asked for (radix_tree::names_of). In a root: its namespace's seed, if any.
  name_run names_;
  /// Likewise where routers use other names for the pages.
  name_run event_names_;
  /// Sums over pages, maintained by radix_tree.
  uint64_t token_digest_ = 0;
  uint64_t l1_digest_ = 0;
  /// The namespace of a root; null in other nodes.
  const cache_namespace* ns_ = nullptr;
};

/// Factors of the fields that change with every operation: one multiplication updates the digest.
struct light_factors {
  static constexpr uint64_t l1_locks = 0x9e3779b97f4a7c15;
  static constexpr uint64_t l2_locks = 0xc2b2ae3d27d4eb4f;
  static constexpr uint64_t last_access = 0x165667b19e3779f9;
  static constexpr uint64_t hits = 0x27d4eb2f165667c5;
  static constexpr uint64_t pins = 0x85ebca77c2b2ae63;
  static constexpr uint64_t references = 0xd6e8feb86659fd93;
};

inline uint64_t radix_node::light_digest() const noexcept {
  return salt_
         * (l1_locks_ * light_factors::l1_locks + l2_locks_ * light_factors::l2_locks
            + use_.last_access * light_factors::last_access + use_.hits * light_factors::hits
            + pins_ * light_factors::pins + references_ * light_factors::references);
}

/// True if L3 accepts the children of this node: it is stored, or the root.
/// @relates radix_node
inline bool is_in_l3(const radix_node& node) noexcept {
  return node.is_root() || node.l3() == l3_state::stored;
}

/// Nodes of the path to `end` for which `wanted` holds, root first.
template <class Predicate>
std::vector<radix_node*> path_nodes(radix_node& end, Predicate wanted) {
  auto nodes = std::vector<radix_node*>{};
  for (auto* node = &end; !node->is_root(); node = node->parent())
    if (wanted(*node))
      nodes.push_back(node);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

} // namespace hicache
