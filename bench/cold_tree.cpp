#include "bench/cold_tree.hpp"

#include "base/check.hpp"

#include <algorithm>
#include <memory>

namespace hicache::bench {

namespace {

radix_options options_of(uint32_t leaves, std::string_view policy) {
  auto options = radix_options{};
  options.page_size = cold_tree::page_size;
  options.l1_pages = leaves + leaves / cold_tree::leaves_per_parent;
  options.eviction = *make_eviction_policy(policy);
  return options;
}

} // namespace

cold_tree::cold_tree(uint32_t leaves, std::string_view policy)
  : leaves_(leaves), tree_(options_of(leaves, policy)) {
  HICACHE_CHECK(leaves % leaves_per_parent == 0);
  auto& root = tree_.root({});
  for (auto i = uint32_t{0}; i < leaves / leaves_per_parent; ++i) {
    parents_.push_back(&add(root));
    // Parents must never be evicted, whatever the policy.
    tree_.lock_l1(*parents_.back());
  }
  auto list = std::vector<radix_node*>{};
  for (auto i = uint32_t{0}; i < leaves; ++i)
    list.push_back(&add(*parents_[i % parents_.size()]));
  std::shuffle(list.begin(), list.end(), random_);
  for (auto* leaf : list)
    use(*leaf);
}

void cold_tree::add_leaves() {
  while (tree_.l1_pool().free() > 0)
    use(add(*parents_[random_() % parents_.size()]));
}

radix_node& cold_tree::add(radix_node& parent) {
  tree_.tick();
  const auto tokens = std::make_shared<const std::vector<token_id>>(page_size, ++added_);
  return tree_.add(parent, token_span{tokens, 0, page_size}, *tree_.take_l1(1), {}, {},
                   l3_state::unknown);
}

void cold_tree::use(radix_node& leaf) {
  tree_.tick();
  tree_.touch(leaf, leaf.id() % 5);
  tree_.raise_priority(leaf, static_cast<int32_t>(leaf.id() % 3));
}

} // namespace hicache::bench
