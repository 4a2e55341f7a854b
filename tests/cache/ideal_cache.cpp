#include "tests/cache/ideal_cache.hpp"

#include "base/check.hpp"

#include <utility>

namespace hicache::test {

ideal_cache::ideal_cache(const ideal_sizes& sizes, eviction_policy_ptr policy)
  : sizes_(sizes), policy_(std::move(policy)) {}

uint64_t ideal_cache::serve(const page_string& prompt) {
  ++now_;
  auto path = std::vector<number>{};
  auto end = number{0};
  for (const auto content : prompt) {
    const auto found = children_.find({end, content});
    if (found == children_.end())
      break;
    end = found->second;
    path.push_back(end);
  }
  const auto hits = path.size();
  for (const auto each : path) {
    pages_[each].is_busy = true;
    set_fast(each, true);
    update(each);
  }
  const auto added = prompt.size() - hits;
  while (fast_used_ + added > sizes_.fast_pages && !fast_leaves_.empty())
    evict();
  for (auto i = hits; i < prompt.size() && fast_used_ < sizes_.fast_pages; ++i) {
    if (unused_.empty()) {
      unused_.push_back(static_cast<number>(pages_.size()));
      pages_.emplace_back();
    }
    const auto each = unused_.back();
    unused_.pop_back();
    pages_[each] = {.parent = end, .content = prompt[i], .is_busy = true, .use = {.created = now_}};
    children_[{end, prompt[i]}] = each;
    ++pages_[end].children;
    ++slow_used_;
    set_fast(each, true);
    path.push_back(each);
    end = each;
  }
  for (const auto each : path) {
    pages_[each].is_busy = false;
    pages_[each].use.last_access = now_;
    ++pages_[each].use.hits;
    update(each);
  }
  return hits;
}

/// Takes the next page out of the fast part.
void ideal_cache::evict() {
  const auto each = std::get<number>(*fast_leaves_.begin());
  if (pages_[each].use.hits < sizes_.least_uses || sizes_.slow_pages == 0) {
    forget_below(each);
    return forget(each);
  }
  set_fast(each, false);
  update(each);
  while (slow_used_ > sizes_.slow_pages && !slow_leaves_.empty())
    forget(std::get<number>(*slow_leaves_.begin()));
}

void ideal_cache::set_fast(number each, bool is_fast) {
  auto& page = pages_[each];
  if (page.is_fast == is_fast)
    return;
  if (page.leaf)
    (page.is_fast ? fast_leaves_ : slow_leaves_).erase(*std::exchange(page.leaf, {}));
  page.is_fast = is_fast;
  fast_used_ += is_fast ? 1 : -1;
  slow_used_ -= is_fast ? 1 : -1;
  pages_[page.parent].fast_children += is_fast ? 1 : -1;
  update(page.parent);
}

void ideal_cache::update(number each) {
  if (each == 0)
    return;
  auto& page = pages_[each];
  const auto is_leaf = !page.is_busy && (page.is_fast ? page.fast_children : page.children) == 0;
  auto next = std::optional<place>{};
  if (is_leaf)
    next = place{policy_->rank(page.use), each};
  if (next == page.leaf)
    return;
  auto& leaves = page.is_fast ? fast_leaves_ : slow_leaves_;
  if (page.leaf)
    leaves.erase(*page.leaf);
  if (next)
    leaves.insert(*next);
  page.leaf = next;
}

void ideal_cache::forget(number each) {
  set_fast(each, false);
  auto& page = pages_[each];
  HICACHE_CHECK(page.children == 0);
  page.is_busy = true;
  update(each);
  --slow_used_;
  children_.erase({page.parent, page.content});
  --pages_[page.parent].children;
  update(page.parent);
  unused_.push_back(each);
}

void ideal_cache::forget_below(number each) {
  if (pages_[each].children == 0)
    return;
  auto below = std::vector<number>{};
  for (const auto& [key, child] : children_)
    if (key.first == each)
      below.push_back(child);
  for (const auto child : below) {
    forget_below(child);
    forget(child);
  }
}

} // namespace hicache::test
