#pragma once

#include "cache/radix/radix_tree.hpp"

#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

namespace hicache::bench {

/// A radix tree of one-page leaves, a hundred per parent, used in an order unrelated to memory.
class cold_tree {
public:
  static constexpr uint32_t page_size = 16;
  static constexpr uint32_t leaves_per_parent = 100;

  /// @param policy As make_eviction_policy reads it.
  cold_tree(uint32_t leaves, std::string_view policy);

  /// Adds leaves up to the initial number.
  void add_leaves();

  radix_tree& tree() noexcept { return tree_; }

  uint64_t nodes() const noexcept { return tree_.node_count(); }

private:
  radix_node& add(radix_node& parent);

  /// Touches a leaf; frequency and priority depend on its number.
  void use(radix_node& leaf);

  uint32_t leaves_;
  radix_tree tree_;
  std::vector<radix_node*> parents_;
  /// Leaves and parents added so far.
  uint32_t added_ = 0;
  std::mt19937 random_{2};
};

} // namespace hicache::bench
