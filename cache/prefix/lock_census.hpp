#pragma once

#include "cache/radix/radix_node.hpp"

#include <cstdint>
#include <map>

namespace hicache {

/// The locks that all holders account for, by node. For checks.
class lock_census {
public:
  /// Counts the locks on the paths to these nodes; null: there is none.
  void add(const radix_node* l1_end, const radix_node* l2_end) {
    add(l1_, l1_end);
    add(l2_, l2_end);
  }

  uint32_t l1_locks(const radix_node& node) const { return count(l1_, node); }

  uint32_t l2_locks(const radix_node& node) const { return count(l2_, node); }

private:
  using counts = std::map<const radix_node*, uint32_t>;

  static void add(counts& list, const radix_node* node) {
    for (; node != nullptr; node = node->parent())
      ++list[node];
  }

  static uint32_t count(const counts& list, const radix_node& node) {
    const auto entry = list.find(&node);
    return entry == list.end() ? 0 : entry->second;
  }

  counts l1_;
  counts l2_;
};

} // namespace hicache
