// What the model makes of answers and of the cache's own view of itself.

#include "tests/model/model_cache.hpp"

#include <algorithm>

namespace hicache::test {

void model_cache::same(std::string_view name, uint64_t expected, uint64_t found) {
  if (expected == found || !difference_.empty())
    return;
  difference_ = std::string{name} + ": expected " + std::to_string(expected) + ", found "
                + std::to_string(found);
}

// -- answers ------------------------------------------------------------------

void model_cache::same_pages(const model_path& path, const std::vector<page_index>& owned,
                             const page_list& found) {
  const auto cached = page_count(path);
  const auto size = found ? found->size() : 0;
  same("number of pages", cached + owned.size(), size);
  if (size != cached + owned.size())
    return;
  for (auto i = size_t{0}; i < size; ++i) {
    const auto number = (*found)[i];
    if (i >= cached) {
      same("own page", owned[i - cached], number);
      continue;
    }
    auto& page = pages_.at(first_pages(path, i + 1));
    if (page.l1_page == 0) {
      same("uses of page " + std::to_string(number), 0, uses_of(number));
      page.l1_page = number;
    }
    same("page " + std::to_string(i) + " of the prefix", page.l1_page, number);
  }
}

void model_cache::same_node(const model_path& path, node_id found) {
  if (page_count(path) == 0)
    return same("node", 0, found);
  const auto run = pages_.at(path).run;
  same("run of node " + std::to_string(found), run, runs_.try_emplace(found, run).first->second);
  same("node of a run", nodes_.try_emplace(run, found).first->second, found);
}

void model_cache::same_locks(const lock_result& found) {
  count_holders();
  const auto in_l1 = count([](const model_page& page) { return page.in_l1; });
  same("evictable_tokens", tokens(l1_evictable()), found.evictable_tokens);
  same("protected_tokens", tokens(in_l1 - l1_evictable()), found.protected_tokens);
}

// -- state --------------------------------------------------------------------

std::string model_cache::compare(const prefix_cache& cache) {
  difference_.clear();
  count_holders();
  compare_stats(cache.stats());
  auto ends = std::map<node_id, model_path>{};
  auto moments = std::vector<std::pair<uint64_t, uint64_t>>{};
  auto births = moments;
  auto found = uint64_t{0};
  for (const auto& node : cache.nodes()) {
    const auto parent = node.parent == 0 ? root_of(node.ns) : ends.at(node.parent);
    auto path = parent;
    const auto below = path_of({0}, node.tokens, node.tokens.size());
    path.insert(path.end(), below.begin() + 1, below.end());
    compare_node(node, parent, path);
    if (!difference_.empty())
      return difference_;
    const auto& use = pages_.at(path).use;
    moments.emplace_back(use.last_access, node.use.last_access);
    births.emplace_back(use.created, node.use.created);
    found += page_count(below);
    ends.emplace(node.id, std::move(path));
  }
  same("pages in nodes", pages_.size(), found);
  compare_order("last_access", std::move(moments));
  compare_order("created", std::move(births));
  return difference_;
}

void model_cache::compare_stats(const tree_stats& found) {
  const auto in_l1 = count([](const model_page& page) { return page.in_l1; });
  auto runs = std::vector<uint64_t>{};
  for (const auto& [path, page] : pages_)
    runs.push_back(page.run);
  std::ranges::sort(runs);
  runs.erase(std::unique(runs.begin(), runs.end()), runs.end());
  same("nodes", runs.size(), found.nodes);
  same("device_free", l1_free(), found.l1_free);
  same("device_evictable", l1_evictable(), found.l1_evictable);
  same("device_protected", in_l1 - l1_evictable(), found.l1_protected);
  same("host_free", l2_free(), found.l2_free);
  same("host_used", options_.l2_pages - l2_free(), found.l2_used);
  same("evicted_device", evicted_l1_, found.evicted_l1);
  same("evicted_host", evicted_l2_, found.evicted_l2);
  same("pinned", count([](const model_page& page) { return page.pins > 0; }), found.pinned);
  same("requests_open", requests_.size(), found.requests_open);
}

void model_cache::compare_node(const node_view& found, const model_path& parent,
                               const model_path& path) {
  const auto name = "node " + std::to_string(found.id) + ": ";
  for (auto pages = page_count(parent) + 1; pages <= page_count(path); ++pages) {
    const auto entry = pages_.find(first_pages(path, pages));
    if (entry == pages_.end())
      return same(name + "page " + std::to_string(pages) + " is cached", 0, 1);
    const auto& page = entry->second;
    same(name + "on_device", page.in_l1 ? 1 : 0, found.in_l1 ? 1 : 0);
    same(name + "on_host", page.in_l2 ? 1 : 0, found.in_l2 ? 1 : 0);
    same(name + "device locked", page.l1_locks > 0 ? 1 : 0, found.l1_locks > 0 ? 1 : 0);
    same(name + "host_locks", page.l2_locks, found.l2_locks);
    same(name + "pins", page.pins, found.pins);
    same(name + "hits", page.use.hits, found.use.hits);
    same(name + "priority", static_cast<uint64_t>(page.use.priority),
         static_cast<uint64_t>(found.use.priority));
  }
  const auto tail = tail_of(path, pages_.size());
  same(name + "pages", tail.size(), page_count(path) - page_count(parent));
  same_node(path, found.id);
}

/// Moments are counts of operations; only their order says something.
void model_cache::compare_order(std::string_view name,
                                std::vector<std::pair<uint64_t, uint64_t>> moments) {
  std::ranges::sort(moments);
  for (auto i = size_t{1}; i < moments.size(); ++i) {
    const auto [ours, theirs] = moments[i];
    const auto [ours_before, theirs_before] = moments[i - 1];
    same(std::string{name} + " in order", 1,
         (ours == ours_before) == (theirs == theirs_before) && theirs >= theirs_before ? 1 : 0);
  }
}

} // namespace hicache::test
