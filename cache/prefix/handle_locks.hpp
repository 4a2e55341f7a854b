#pragma once

#include "cache/prefix/lock_census.hpp"
#include "cache/radix/radix_tree.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <deque>
#include <map>

namespace hicache {

/// Locks that an engine holds by node id. Part of a prefix_cache.
class handle_locks {
public:
  explicit handle_locks(radix_tree& tree) : tree_(tree) {}

  /// Locks the path to the node on the tiers that hold it.
  /// @returns unknown_id if the node was removed; limit_reached.
  result<void> lock(node_id id);

  /// Ends the oldest lock of this node. @returns unknown_id if there is none.
  result<void> unlock(node_id id);

  /// Locks held; also the digest of this part.
  uint64_t count() const noexcept { return count_; }

  void count_locks(lock_census& census) const;

private:
  struct held_lock {
    radix_node* l1_end = nullptr;
    /// Null if the whole path was in L1.
    radix_node* l2_end = nullptr;
  };

  radix_tree& tree_;
  std::map<node_id, std::deque<held_lock>> locks_;
  uint64_t count_ = 0;
};

/// The node with this id. @returns unknown_id if it was removed
result<radix_node*> find_node(radix_tree& tree, node_id id);

} // namespace hicache
