#pragma once

#include "cache/radix/eviction_policy.hpp"
#include "cache/radix/radix_children.hpp"
#include "cache/radix/token_span.hpp"
#include "messages/ids.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace hicache {

/// What is known about a node's pages in L3.
enum class l3_state : uint8_t { unknown, pending, stored };

/// A node's place in an eviction order. The smallest goes first.
struct order_key {
  static constexpr uint8_t absent = 0xff;

  uint8_t group = absent;
  eviction_rank rank;

  bool is_present() const noexcept { return group != absent; }

  friend auto operator<=>(const order_key&, const order_key&) = default;
};

/// What the tree's sums and eviction orders hold for a node at present.
struct node_record {
  uint64_t device_evictable = 0;
  uint64_t device_protected = 0;
  order_key device_key;
  bool on_device = false;
  bool on_host = false;
  bool is_copy = false;
  order_key host_key;
  uint64_t host_evictable = 0;
  uint64_t digest = 0;

  friend bool operator==(const node_record&, const node_record&) = default;
};

/// A run of whole pages that share one path from the root. Written by radix_tree and the operations
/// on it; whoever changes a field calls `radix_tree::changed` afterwards.
struct radix_node {
  // What locking and touching a path need comes first, to lie in few cache lines.

  /// Null for the root of a namespace, which holds no pages.
  radix_node* parent = nullptr;
  /// What the light part of the digest is multiplied with.
  uint64_t salt = 0;
  /// Locks on this node and all below it.
  uint32_t device_locks = 0;
  uint32_t host_locks = 0;
  uint32_t device_children = 0;
  uint32_t host_children = 0;
  /// Children on both tiers.
  uint32_t copy_children = 0;
  /// Pages before this node on its path, and its own.
  uint64_t first = 0;
  uint64_t pages = 0;
  /// Empty or one per page.
  std::vector<page_index> device;
  node_record record;
  node_use use;
  /// Pins and session references that end here or below.
  uint32_t pins = 0;
  uint32_t references = 0;
  token_span tokens;
  radix_children children;

  node_id id = 0;
  /// Operations in flight on the node's pages, or 0.
  operation_id write = 0;
  operation_id load = 0;
  operation_id backup = 0;
  l3_state l3 = l3_state::unknown;
  /// True if the device pages are to go when `write` is a fact (write_back).
  bool is_leaving = false;
  /// True if the pins hold a device lock, since no other tier has the pages.
  bool has_pin_lock = false;
  /// True if the pages hold no valid bytes: no walk finds the node, and it is freed as soon as
  /// nobody locks it.
  bool is_discarded = false;
  /// Empty or one per page. Reserved until the copy is a fact, if `write` is set.
  std::vector<page_index> host;
  /// One per page if the tree names pages, else empty. In a root: the seed of its namespace, if it
  /// has one.
  std::vector<page_key> keys;
  /// The same for routers, where events are wanted and routers know the pages by other names.
  std::vector<page_key> event_keys;
  /// Sums over pages, maintained by radix_tree.
  uint64_t token_digest = 0;
  uint64_t device_digest = 0;
  /// The namespace of a root; null in other nodes.
  const cache_namespace* ns = nullptr;

  bool is_root() const noexcept { return parent == nullptr; }

  /// False for roots, and for the topmost of the nodes that were discarded together.
  bool is_child() const noexcept { return !is_root() && (!is_discarded || parent->is_discarded); }

  bool on_device() const noexcept { return !device.empty(); }

  /// True if its pages on the host are copies, or are to be.
  bool is_copy() const noexcept { return on_device() && !host.empty(); }

  /// True if L2 holds the pages; reserved pages do not count yet.
  bool host_resident() const noexcept { return !host.empty() && write == 0; }

  /// End of the node on its path, in pages.
  uint64_t end() const noexcept { return first + pages; }

  /// The root of its namespace.
  const radix_node& root() const noexcept {
    const auto* node = this;
    while (!node->is_root())
      node = node->parent;
    return *node;
  }

  /// The last node of the path to this one that is on the device; may be the root.
  radix_node& device_end() noexcept {
    auto* node = this;
    while (!node->is_root() && !node->on_device())
      node = node->parent;
    return *node;
  }
};

/// Factors of what changes with every operation, so that the digest follows such a change with one
/// multiplication.
struct light_factors {
  static constexpr uint64_t device_locks = 0x9e3779b97f4a7c15;
  static constexpr uint64_t host_locks = 0xc2b2ae3d27d4eb4f;
  static constexpr uint64_t last_access = 0x165667b19e3779f9;
  static constexpr uint64_t hits = 0x27d4eb2f165667c5;
  static constexpr uint64_t pins = 0x85ebca77c2b2ae63;
  static constexpr uint64_t references = 0xd6e8feb86659fd93;
};

/// @relates radix_node
inline uint64_t light_digest(const radix_node& node) noexcept {
  return node.salt
         * (node.device_locks * light_factors::device_locks
            + node.host_locks * light_factors::host_locks
            + node.use.last_access * light_factors::last_access
            + node.use.hits * light_factors::hits + node.pins * light_factors::pins
            + node.references * light_factors::references);
}

/// Nodes of the path to `end` for which `wanted` holds, root first.
template <class Predicate>
std::vector<radix_node*> path_nodes(radix_node& end, Predicate wanted) {
  auto nodes = std::vector<radix_node*>{};
  for (auto* node = &end; !node->is_root(); node = node->parent)
    if (wanted(*node))
      nodes.push_back(node);
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

} // namespace hicache
