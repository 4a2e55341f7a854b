#include "cache/prefix/handle_locks.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/try.hpp"

#include <string>

namespace hicache {

result<radix_node*> find_node(radix_tree& tree, node_id id) {
  if (auto* const node = tree.find(id))
    return node;
  return fail(ec::unknown_id, "node " + std::to_string(id) + " is not in the tree (any more)");
}

result<void> handle_locks::lock(node_id id) {
  auto* const node = HICACHE_TRY(find_node(tree_, id));
  if (count_ >= limits::handle_locks)
    return fail(ec::limit_reached, "too many locks are held by node");
  auto& l1_end = node->l1_end();
  tree_.lock_l1(l1_end);
  if (&l1_end != node)
    tree_.lock_l2(*node);
  locks_[id].push_back({&l1_end, &l1_end != node ? node : nullptr});
  ++count_;
  return {};
}

result<void> handle_locks::unlock(node_id id) {
  const auto entry = locks_.find(id);
  if (entry == locks_.end())
    return fail(ec::unknown_id, "node " + std::to_string(id) + " is not locked");
  const auto held = entry->second.front();
  entry->second.pop_front();
  if (entry->second.empty())
    locks_.erase(entry);
  --count_;
  if (held.l2_end != nullptr)
    tree_.unlock_l2(*held.l2_end);
  tree_.unlock_l1(*held.l1_end);
  return {};
}

void handle_locks::count_locks(lock_census& census) const {
  auto held = uint64_t{0};
  for (const auto& [id, list] : locks_) {
    HICACHE_CHECK(!list.empty());
    for (const auto& lock : list) {
      ++held;
      census.add(lock.l1_end, lock.l2_end);
    }
  }
  HICACHE_CHECK(held == count_);
}

} // namespace hicache
