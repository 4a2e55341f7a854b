#pragma once

#include "base/check.hpp"
#include "cache/prefix/cache_event.hpp"
#include "cache/radix/page_allocator.hpp"
#include "cache/radix/radix_node.hpp"
#include "hicache/ids.hpp"

#include <absl/container/btree_set.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace hicache {

/// End of a walk along tokens: `node` holds the last matched page, possibly not as its last;
/// `pages` counts the matched pages of the whole path.
struct path_end {
  radix_node* node = nullptr;
  uint64_t pages = 0;
};

/// A change of one node. On destruction it updates sums, eviction orders and digest to match the
/// node. Must not outlive the node.
class node_edit {
public:
  node_edit(radix_tree& tree, radix_node& node) noexcept : tree_(tree), node_(node) {}

  node_edit(const node_edit&) = delete;

  node_edit& operator=(const node_edit&) = delete;

  ~node_edit();

  /// Begins write `id` to these L2 pages, one per page of the node.
  void begin_write(operation_id id, std::vector<page_index> host) {
    HICACHE_CHECK(host.size() == node_.pages_);
    node_.write_ = id;
    node_.l2_pages_ = std::move(host);
  }

  void begin_backup(operation_id id) {
    node_.l3_mark_ = id;
    node_.l3_ = l3_state::pending;
  }

  /// The backup has ended, or the node's state in L3 has changed.
  /// @param stored_ns As radix_node::stored_ns.
  void end_backup(l3_state l3, int64_t stored_ns = 0) {
    node_.l3_mark_ = static_cast<uint64_t>(stored_ns);
    node_.l3_ = l3;
  }

  void set_priority(int32_t priority) { node_.use_.priority = priority; }

private:
  radix_tree& tree_;
  radix_node& node_;
};

/// Sums over all nodes, in pages.
struct radix_totals {
  uint64_t l1_evictable = 0;
  uint64_t l1_protected = 0;
  uint64_t l2_evictable = 0;
  uint64_t digest = 0;

  friend bool operator==(const radix_totals&, const radix_totals&) = default;
};

/// Fixed settings of a radix_tree.
struct radix_options {
  uint32_t page_size = 1;
  /// Tokens shared by adjacent pages: 1 with bigrams, else 0.
  uint32_t overlap = 0;
  uint32_t l1_pages = 0;
  uint32_t l2_pages = 0;
  eviction_policy_ptr eviction = lru_policy();
  page_order order = page_order::newest_first;
  /// Collect events.
  bool events = false;
  /// join_nodes() does something.
  bool join_nodes = true;
  /// L3 reads L2 pages in place, see radix_tree::set_exports_l2.
  bool exports_l2 = false;
};

/// The bare tree: nodes with pages on two tiers, locks, recency and eviction. Independent of
/// requests and copies. Single-threaded.
///
/// Invariants:
/// - L1 pages form a prefix of every path; a node without L1 pages has L2 pages.
/// - Locks count along the path, so an unlocked node has no locked node below it. Hence all pages
/// of unlocked nodes can be evicted, and their number tells whether an allocation can succeed.
/// - A node with L2-locked pages below it is in L2 itself or L1-locked. A node in L1 may lack a
/// copy in L2 while nodes below it are only in L2.
/// - A discarded node is locked; so is its parent, which no longer has it as a child.
class radix_tree {
public:
  explicit radix_tree(const radix_options& options);

  radix_tree(const radix_tree&) = delete;

  radix_tree& operator=(const radix_tree&) = delete;

  // -- structure --------------------------------------------------------------

  /// The root of a namespace, created if necessary. Removed automatically with its last child or
  /// lock.
  radix_node& root(const cache_namespace& ns);

  /// The root, or null.
  radix_node* find_root(const cache_namespace& ns) noexcept;

  /// The node, or null if it was removed.
  radix_node* find(node_id id) noexcept;

  /// Walks from `start`, which ends at tokens[start.end() * page_size], up to page `limit` of the
  /// path.
  path_end walk(radix_node& start, std::span<const token_id> tokens, uint64_t limit) const;

  /// The node's id, for an engine; 0 for a root.
  static node_id handle_of(radix_node& node) noexcept {
    node.has_handle_ = true;
    return node.is_root() ? 0 : node.id();
  }

  /// The node that ends where the walk ended; splits a node if necessary.
  radix_node& cut(const path_end& end);

  /// Adds a node at the end of `parent`.
  /// @param names Of its pages, if known.
  /// @pre its first page differs from those of all children
  radix_node& add(radix_node& parent, token_span tokens, std::vector<page_index> device,
                  std::vector<page_index> host, name_run names, l3_state l3);

  /// The names of the node's pages; of a root, its namespace's seed, if any. Hashes nothing. Visits
  /// the ancestors whose names nobody has asked for yet.
  const name_run& names_of(radix_node& node) const { return name_path(node, &radix_node::names_); }

  /// The names of the pages of `tokens`, which follow on `prior`.
  name_run names_after(const name_run& prior, const token_span& tokens) const;

  /// Gives L1 pages to a node that has none.
  /// @param load The load that will fill them; 0 if they already hold the bytes.
  void set_l1(radix_node& node, std::vector<page_index> pages, operation_id load = 0);

  /// The copy to L2 has succeeded: ends `node.write`. finish_load does the same for `node.load`.
  void finish_write(radix_node& node);

  /// The copy to L2 failed: frees the L2 pages reserved for it.
  void cancel_write(radix_node& node);

  /// Completes a write-back: frees the node's L1 pages, unless a request uses them meanwhile.
  void finish_write_back(radix_node& node);

  /// A write-back failed: removes the node without a copy, and everything below it, unless a
  /// request uses it meanwhile.
  void drop_unsaved(radix_node& node);

  /// Takes a node and everything below it out of the tree, because their pages hold no valid bytes.
  /// Unlocked nodes are freed at once, the others with their last lock; until then they stay part
  /// of the path for the lock holders.
  /// @pre no pin ends there
  void discard(radix_node& top);

  void finish_load(radix_node& node);

  /// Removes everything.
  /// @pre nothing is locked
  void clear();

  /// Joins each node with its only child where nothing distinguishes them any more, as far as
  /// eviction split nodes or removed siblings since the last call. Otherwise a prompt that leaves
  /// L1 page by page would become a chain of single pages. The lower id remains; unlocked nodes
  /// above vanish.
  void join_nodes();

  /// Whether L3 exports L2 pages, that is, has a page only while L2 has it. If so, L2 copies of L1
  /// pages are evicted in the order of all L2 pages instead of first, because peers find a page by
  /// its whole path; and a node that loses its copy is no longer stored.
  void set_exports_l2(bool exports_l2);

  // -- use --------------------------------------------------------------------

  /// Advances the recency counter.
  void tick() noexcept { ++clock_; }

  /// Makes the path to `node` the most recently used.
  /// @param hits Number of hits to count.
  void touch(radix_node& node, uint64_t hits);

  /// Raises the priority of the path to `node` to at least this one.
  void raise_priority(radix_node& node, int32_t priority);

  /// Locks the L1 (L2) pages of the path to `node`. Counted.
  void lock_l1(radix_node& node);

  void unlock_l1(radix_node& node);

  void lock_l2(radix_node& node);

  void unlock_l2(radix_node& node);

  /// Counts a pin on the path to `node`, which keeps its pages on at least one tier.
  void pin(radix_node& node);

  void unpin(radix_node& node);

  /// Moves the path to `node` behind all unreferenced nodes in eviction order.
  /// @returns the reference's number.
  uint64_t refer(radix_node& node);

  void drop_reference(uint64_t reference);

  // -- pages ------------------------------------------------------------------

  /// Begins to write a leaf of the L1 part that no other tier has to these L2 pages, one per page.
  /// The node stays locked until the write is confirmed.
  using save_function = std::function<void(radix_node&, std::vector<page_index>)>;

  /// True if a node that leaves L1 is worth keeping in L2.
  using worth_function = std::function<bool(const radix_node&)>;

  /// From now on, saves pages before they leave L1, if they are worth it and L2 has room: free
  /// pages, or pages that are evicted before the node.
  void set_save(save_function save, worth_function is_worth_saving) {
    save_ = std::move(save);
    is_worth_saving_ = std::move(is_worth_saving);
  }

  /// Takes pages, evicting if needed. Evicts nothing if that cannot suffice. May return nothing
  /// although eviction has begun, if write-backs are pending.
  std::optional<std::vector<page_index>> take_l1(uint64_t count);

  std::optional<std::vector<page_index>> take_l2(uint64_t count);

  /// L2 pages that take_l2() gets, by eviction or not. More may be there while pages are held.
  uint64_t l2_available() const noexcept;

  /// Frees up to `count` L1 pages.
  /// @returns how many.
  uint64_t evict_l1(uint64_t count);

  uint64_t evict_l2(uint64_t count);

  /// L1 pages that become free once their copy to L2 is confirmed.
  uint64_t pending_write_backs() const noexcept { return pending_write_backs_; }

  page_allocator& l1_pool() noexcept { return l1_pool_; }

  page_allocator& l2_pool() noexcept { return l2_pool_; }

  const page_allocator& l1_pool() const noexcept { return l1_pool_; }

  const page_allocator& l2_pool() const noexcept { return l2_pool_; }

  // -- state ------------------------------------------------------------------

  const radix_options& options() const noexcept { return options_; }

  const radix_totals& totals() const noexcept { return totals_; }

  /// Takes the events since the last call, if the options ask for them.
  std::vector<cache_change> take_changes() { return std::exchange(changes_, {}); }

  /// Nodes that hold pages: all but roots.
  uint64_t node_count() const noexcept { return nodes_.size() - roots_.size(); }

  uint64_t evicted_l1() const noexcept { return evicted_l1_; }

  uint64_t evicted_l2() const noexcept { return evicted_l2_; }

  uint64_t clock() const noexcept { return clock_; }

  uint64_t digest() const noexcept;

  /// Tokens of a run of so many pages.
  uint64_t span_size(uint64_t pages) const noexcept {
    return pages * options_.page_size + options_.overlap;
  }

  /// Whole pages of so many tokens.
  uint64_t whole_pages(uint64_t tokens) const noexcept {
    return tokens < options_.overlap ? 0 : (tokens - options_.overlap) / options_.page_size;
  }

  /// All nodes, ordered by id. For checks.
  std::vector<radix_node*> sorted_nodes() const;

  /// Aborts on a violated invariant.
  void check_invariants() const;

private:
  friend class node_edit;

  struct order_entry {
    order_key key;
    radix_node* node = nullptr;

    friend bool operator<(const order_entry& a, const order_entry& b) noexcept {
      return a.key != b.key ? a.key < b.key : a.node->id() < b.node->id();
    }
  };

  using eviction_order = absl::btree_set<order_entry>;

  radix_node& make_node();
  radix_node& split(radix_node& node, uint64_t pages);
  bool can_join(const radix_node& upper, const radix_node& lower) const;
  void join(radix_node& upper, radix_node& lower);
  void want_join(const radix_node& node);
  void remove(radix_node& node);
  void drop_unused_root(radix_node& node);
  static std::vector<radix_node*> descendants(const radix_node& node);
  void drop_descendants(radix_node& node);
  void free_discarded(radix_node& node);
  void truncate(radix_node& node, uint64_t pages);
  void release_l1(radix_node& node, uint64_t from);
  void release_l2(radix_node& node, uint64_t from);
  void evict_l1_tail(radix_node& node, uint64_t most);
  uint64_t write_back_for(radix_node& node, uint64_t wanted);
  void save_tail(radix_node& node, uint64_t kept);
  uint64_t evict_l2_tail(radix_node& node, uint64_t most);
  void demote(radix_node& node);
  void update_pin_lock(radix_node& node);
  void slide_references(radix_node& node);
  static void prefetch_victims(const eviction_order& order);
  first_page first_page_of(const radix_node& node) const noexcept {
    return {node.tokens_.data(), page_tokens_};
  }
  const name_run& name_path(radix_node& node, name_run radix_node::*names) const;
  const name_run& event_names_of(radix_node& node) const;
  void emit_stored(cache_medium medium, radix_node& node);
  void emit_removed(cache_medium medium, radix_node& node, uint64_t from);
  void reorder(eviction_order& order, radix_node& node, order_key& key, const order_key& next);
  /// Updates sums, eviction orders and digest after a change of the node's fields.
  void changed(radix_node& node);
  order_key l1_key_of(const radix_node& node) const;
  order_key l2_key_of(const radix_node& node) const;
  void update_l1(radix_node& node);
  void update_l2(radix_node& node);
  uint64_t heavy_digest(const radix_node& node) const;
  node_record desired_record(const radix_node& node) const;
  uint64_t sum_tokens(const radix_node& node, uint64_t from, uint64_t to) const;
  uint64_t sum_l1(const radix_node& node, uint64_t from, uint64_t to) const;
  void check_node(const radix_node& node) const;
  void check_references() const;

  radix_options options_;
  /// Tokens that one page depends on.
  uint32_t page_tokens_;
  page_allocator l1_pool_;
  page_allocator l2_pool_;
  absl::flat_hash_map<node_id, std::unique_ptr<radix_node>> nodes_;
  std::map<cache_namespace, radix_node*> roots_;
  /// Victims come from the front: leaves of the L1 part; deepest L2 copies of L1 paths and L2-only
  /// leaves.
  eviction_order l1_leaves_;
  eviction_order l2_victims_;
  radix_totals totals_;
  std::vector<cache_change> changes_;
  save_function save_;
  worth_function is_worth_saving_;
  /// Current end of each reference, and the references that end at each node.
  absl::flat_hash_map<uint64_t, radix_node*> references_;
  absl::flat_hash_map<const radix_node*, std::vector<uint64_t>> reference_ends_;
  uint64_t last_reference_ = 0;
  node_id last_id_ = 0;
  /// Nodes that join_nodes() looks at.
  std::vector<node_id> may_join_;
  uint64_t clock_ = 0;
  uint64_t pending_write_backs_ = 0;
  uint64_t evicted_l1_ = 0;
  uint64_t evicted_l2_ = 0;
};

inline node_edit::~node_edit() {
  tree_.changed(node_);
}

} // namespace hicache
