#pragma once

#include "cache/token_span.hpp"
#include "messages/ids.hpp"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace hicache {

/// The first page of a child, by which its parent finds it. Looks into the child's tokens.
struct first_page {
  const token_id* tokens = nullptr;
  uint32_t page_size = 0;

  friend bool operator==(const first_page& a, const first_page& b) noexcept {
    return a.page_size == b.page_size
           && std::memcmp(a.tokens, b.tokens, a.page_size * sizeof(token_id)) == 0;
  }
};

/// Hashes the tokens of a page.
struct first_page_hash {
  size_t operator()(const first_page& page) const noexcept;
};

/// What is known about a node's pages in L3.
enum class l3_state : uint8_t { unknown, pending, stored };

struct radix_node;

/// What the tree's sums and eviction orders hold for a node at present.
struct node_record {
  bool on_device = false;
  bool on_host = false;
  /// Key in the eviction order (the recency), or 0 if the node is not in it.
  uint64_t device_rank = 0;
  uint64_t host_rank = 0;
  uint64_t device_evictable = 0;
  uint64_t device_protected = 0;
  uint64_t host_evictable = 0;
  uint64_t digest = 0;

  friend bool operator==(const node_record&, const node_record&) = default;
};

/// A run of whole pages that share one path from the root. Written by radix_tree and the operations
/// on it; whoever changes a field calls `radix_tree::changed` afterwards.
struct radix_node {
  node_id id = 0;
  /// Null for the root of a namespace, which holds no pages.
  radix_node* parent = nullptr;
  /// The namespace of a root; null in other nodes.
  const cache_namespace* ns = nullptr;
  token_span tokens;
  /// Pages before this node on its path, and its own.
  uint64_t first = 0;
  uint64_t pages = 0;
  /// Never iterated for a decision.
  absl::flat_hash_map<first_page, radix_node*, first_page_hash> children;
  /// Empty or one per page.
  std::vector<page_index> device;
  /// Empty or one per page. Reserved until the copy is a fact, if `write` is set.
  std::vector<page_index> host;
  /// One per page if the tree names pages, else empty. In a root: the seed of its namespace, if it
  /// has one.
  std::vector<page_key> keys;
  /// Locks on this node and all below it.
  uint32_t device_locks = 0;
  uint32_t host_locks = 0;
  uint64_t last_access = 0;
  uint64_t hits = 0;
  /// Operations in flight on the node's pages, or 0.
  operation_id write = 0;
  operation_id load = 0;
  operation_id backup = 0;
  l3_state l3 = l3_state::unknown;

  /// Sums over pages, maintained by radix_tree.
  uint64_t token_digest = 0;
  uint64_t device_digest = 0;
  uint32_t device_children = 0;
  uint32_t host_children = 0;
  node_record record;

  bool is_root() const noexcept { return parent == nullptr; }

  bool on_device() const noexcept { return !device.empty(); }

  /// True if L2 holds the pages; reserved pages do not count yet.
  bool host_resident() const noexcept { return !host.empty() && write == 0; }

  /// End of the node on its path, in pages.
  uint64_t end() const noexcept { return first + pages; }
};

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
