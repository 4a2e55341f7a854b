// What must hold in a radix_tree at all times.

#include "base/check.hpp"
#include "cache/radix_tree.hpp"

#include <algorithm>

namespace hicache {

void radix_tree::check_node(const radix_node& node) const {
  HICACHE_CHECK(node.record == desired_record(node));
  auto on_device = uint32_t{0};
  auto on_host = uint32_t{0};
  for (const auto& [page, child] : node.children) {
    HICACHE_CHECK(child->parent == &node);
    HICACHE_CHECK(page.tokens == child->tokens.data() && child->first == node.end());
    HICACHE_CHECK(child->device_locks <= node.device_locks && child->host_locks <= node.host_locks);
    on_device += child->on_device() ? 1 : 0;
    on_host += child->host.empty() ? 0 : 1;
  }
  HICACHE_CHECK(node.device_children == on_device && node.host_children == on_host);
  if (node.is_root()) {
    HICACHE_CHECK(node.device.empty() && node.host.empty() && node.pages == 0);
    HICACHE_CHECK(!node.children.empty() || node.device_locks > 0 || node.host_locks > 0);
    return;
  }
  HICACHE_CHECK(node.pages > 0 && node.tokens.size() == node.pages * page_size_);
  HICACHE_CHECK(node.token_digest == sum_tokens(node, 0, node.pages));
  HICACHE_CHECK(node.device_digest == sum_device(node, 0, node.pages));
  HICACHE_CHECK(node.keys.size() == (name_pages_ ? node.pages : 0));
  HICACHE_CHECK(node.on_device() || node.host_resident());
  HICACHE_CHECK(!node.on_device() || node.device.size() == node.pages);
  HICACHE_CHECK(node.host.empty() || node.host.size() == node.pages);
  HICACHE_CHECK(!node.on_device() || node.parent->is_root() || node.parent->on_device());
  HICACHE_CHECK(node.host_locks == 0 || !node.host.empty() || node.device_locks > 0);
  HICACHE_CHECK(node.last_access > 0 && node.last_access <= clock_);
  if (node.write != 0) {
    HICACHE_CHECK(node.on_device() && !node.host.empty() && node.device_locks > 0
                  && node.host_locks > 0);
    HICACHE_CHECK(node.parent->is_root() || !node.parent->host.empty());
  }
  HICACHE_CHECK(node.load == 0
                || (node.on_device() && node.host_resident() && node.device_locks > 0));
  HICACHE_CHECK((node.backup != 0) == (node.l3 == l3_state::pending));
  HICACHE_CHECK(node.backup == 0 || (node.host_resident() && node.host_locks > 0));
}

void radix_tree::check_invariants() const {
  auto sums = radix_totals{};
  auto device_leaves = size_t{0};
  auto host_leaves = size_t{0};
  auto roots = size_t{0};
  for (auto* node : sorted_nodes()) {
    check_node(*node);
    const auto& record = node->record;
    sums.device_evictable += record.device_evictable;
    sums.device_protected += record.device_protected;
    sums.host_evictable += record.host_evictable;
    sums.digest += record.digest;
    if (record.device_rank != 0) {
      ++device_leaves;
      HICACHE_CHECK(device_leaves_.contains(lru_entry{record.device_rank, node, node->id}));
    }
    if (record.host_rank != 0) {
      ++host_leaves;
      HICACHE_CHECK(host_leaves_.contains(lru_entry{record.host_rank, node, node->id}));
    }
    if (node->is_root()) {
      ++roots;
      HICACHE_CHECK(roots_.at(*node->ns) == node);
    } else {
      const auto child = node->parent->children.find(first_page{node->tokens.data(), page_size_});
      HICACHE_CHECK(child != node->parent->children.end() && child->second == node);
    }
  }
  HICACHE_CHECK(device_leaves == device_leaves_.size() && host_leaves == host_leaves_.size());
  HICACHE_CHECK(roots == roots_.size());
  HICACHE_CHECK(sums == totals_);
}

} // namespace hicache
