#pragma once

#include "cache/page_allocator.hpp"
#include "cache/radix_node.hpp"
#include "messages/ids.hpp"

#include <absl/container/btree_set.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

namespace hicache {

/// Where a walk along tokens ended: `node` holds the last matched page, `pages` were matched on the
/// whole path. The walk may have ended inside the node.
struct path_end {
  radix_node* node = nullptr;
  uint64_t pages = 0;
};

/// Sums over all nodes, in pages.
struct radix_totals {
  uint64_t device_evictable = 0;
  uint64_t device_protected = 0;
  uint64_t host_evictable = 0;
  uint64_t digest = 0;

  friend bool operator==(const radix_totals&, const radix_totals&) = default;
};

/// The bare tree: nodes with pages on two tiers, locks, recency and eviction. Knows neither
/// requests nor copies. Single-threaded.
///
/// Invariants:
/// - Pages on the device form a prefix of every path; a node without pages on the device has pages
/// on the host.
/// - Locks count along the path, so an unlocked node has no locked node below it. Hence all pages
/// of unlocked nodes can be
///   evicted, and their number tells whether an allocation can succeed before anything is evicted.
/// - A node with locked host pages below it is on the host itself or device-locked.
class radix_tree {
public:
  /// @param name_pages True if nodes carry page keys.
  radix_tree(uint32_t page_size, uint32_t device_pages, uint32_t host_pages, bool name_pages);

  radix_tree(const radix_tree&) = delete;

  radix_tree& operator=(const radix_tree&) = delete;

  // -- structure --------------------------------------------------------------

  /// The root of a namespace, created if need be. A root without children and locks goes away by
  /// itself.
  radix_node& root(const cache_namespace& ns);

  /// The root, or null.
  radix_node* find_root(const cache_namespace& ns) noexcept;

  /// Walks from `start`, which ends at tokens[start.end() * page_size], along at most `limit` pages
  /// of the whole path.
  path_end walk(radix_node& start, std::span<const token_id> tokens, uint64_t limit) const;

  /// The node that ends where the walk ended: splits if that is inside a node.
  radix_node& cut(const path_end& end);

  /// Adds a node at the end of `parent`. Its first page must differ from all children's.
  radix_node& add(radix_node& parent, token_span tokens, std::vector<page_index> device,
                  std::vector<page_index> host, std::vector<page_key> keys, l3_state l3);

  /// Gives a node that has no pages on the device the pages of its tokens.
  void set_device(radix_node& node, std::vector<page_index> pages);

  // -- use --------------------------------------------------------------------

  /// Starts a new moment of recency.
  void tick() noexcept { ++clock_; }

  /// Makes the path to `node` the most recently used.
  /// @param hits How many hits that is worth.
  void touch(radix_node& node, uint64_t hits);

  /// Keeps the device (host) pages of the path to `node` until unlocked. Counts.
  void lock_device(radix_node& node);

  void unlock_device(radix_node& node);

  void lock_host(radix_node& node);

  void unlock_host(radix_node& node);

  /// Brings sums and eviction orders up to date after a change of the node's fields.
  void changed(radix_node& node);

  // -- pages ------------------------------------------------------------------

  /// Takes pages, evicting the least recently used if needed. Evicts nothing if that cannot
  /// suffice.
  std::optional<std::vector<page_index>> take_device(uint64_t count);

  std::optional<std::vector<page_index>> take_host(uint64_t count);

  page_allocator& device_pool() noexcept { return device_pool_; }

  page_allocator& host_pool() noexcept { return host_pool_; }

  const page_allocator& device_pool() const noexcept { return device_pool_; }

  const page_allocator& host_pool() const noexcept { return host_pool_; }

  // -- state ------------------------------------------------------------------

  uint32_t page_size() const noexcept { return page_size_; }

  const radix_totals& totals() const noexcept { return totals_; }

  /// Nodes that hold pages: all but roots.
  uint64_t node_count() const noexcept { return nodes_.size() - roots_.size(); }

  uint64_t evicted_device() const noexcept { return evicted_device_; }

  uint64_t evicted_host() const noexcept { return evicted_host_; }

  uint64_t clock() const noexcept { return clock_; }

  uint64_t digest() const noexcept;

  /// All nodes, ordered by id. For checks.
  std::vector<radix_node*> sorted_nodes() const;

  /// Aborts where the tree contradicts itself.
  void check_invariants() const;

private:
  struct lru_entry {
    uint64_t last_access = 0;
    radix_node* node = nullptr;
    node_id id = 0;

    friend bool operator<(const lru_entry& a, const lru_entry& b) noexcept {
      return std::tie(a.last_access, a.id) < std::tie(b.last_access, b.id);
    }
  };

  using lru_order = absl::btree_set<lru_entry>;

  radix_node& make_node();
  radix_node& split(radix_node& node, uint64_t pages);
  void remove(radix_node& node);
  void drop_unused_root(radix_node& node);
  void drop_descendants(radix_node& node);
  void truncate(radix_node& node, uint64_t pages);
  void release_device(radix_node& node, uint64_t from);
  void release_host(radix_node& node, uint64_t from);
  uint64_t evict_device_tail(radix_node& node, uint64_t most);
  uint64_t evict_host_tail(radix_node& node, uint64_t most);
  void reorder(lru_order& order, radix_node& node, uint64_t& rank, uint64_t next_rank);
  node_record desired_record(const radix_node& node) const;
  uint64_t sum_tokens(const radix_node& node, uint64_t from, uint64_t to) const;
  uint64_t sum_device(const radix_node& node, uint64_t from, uint64_t to) const;
  void check_node(const radix_node& node) const;

  uint32_t page_size_;
  bool name_pages_;
  page_allocator device_pool_;
  page_allocator host_pool_;
  absl::flat_hash_map<node_id, std::unique_ptr<radix_node>> nodes_;
  std::map<cache_namespace, radix_node*> roots_;
  /// Victims come from the front: leaves of the device part, leaves of the host part.
  lru_order device_leaves_;
  lru_order host_leaves_;
  radix_totals totals_;
  node_id last_id_ = 0;
  uint64_t clock_ = 0;
  uint64_t evicted_device_ = 0;
  uint64_t evicted_host_ = 0;
};

} // namespace hicache
