// Steps: what all ranks agreed on becomes a fact.

#include "base/check.hpp"
#include "cache/hi_radix_impl.hpp"
#include "cache/mix.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <utility>

namespace hicache {

std::vector<ready_request> hi_radix_tree::impl::step(const step_facts& facts,
                                                     std::span<const page_list> arrived) {
  const auto is_possible = [](const operation_queue& queue, uint64_t done) {
    return done >= queue.done && done <= queue.issued;
  };
  HICACHE_CHECK(is_possible(writes, facts.writes_done) && is_possible(loads, facts.loads_done)
                && is_possible(backups, facts.backups_done));
  HICACHE_CHECK(facts.fetched.size() == ending.size() && arrived.size() == ending.size());
  advance(facts.now_ns);
  while (writes.done < facts.writes_done)
    finish_write(writes.finish_oldest());
  while (loads.done < facts.loads_done)
    finish_load(loads.finish_oldest());
  while (backups.done < facts.backups_done)
    finish_backup(backups.finish_oldest());
  auto ready = std::vector<ready_request>{};
  finish_fetches(facts, arrived, ready);
  return ready;
}

// -- copies -------------------------------------------------------------------

void hi_radix_tree::impl::finish_write(const operation_queue::entry& write) {
  auto unsaved = std::vector<radix_node*>{};
  auto leaving = std::vector<radix_node*>{};
  for (auto* node = write.end; !node->is_root(); node = node->parent) {
    if (node->write != write.id)
      continue;
    tree.finish_write(*node);
    if (node->is_leaving)
      leaving.push_back(node);
    if (options.storage_attached && node->l3 == l3_state::unknown)
      unsaved.push_back(node);
  }
  if (!unsaved.empty()) {
    auto keys = std::vector<page_key>{};
    auto parents = std::vector<page_key>{};
    auto pages = std::vector<page_index>{};
    const auto id = backups.begin(*unsaved.front());
    tree.lock_host(*unsaved.front());
    for (auto each = unsaved.rbegin(); each != unsaved.rend(); ++each) {
      auto& node = **each;
      node.l3 = l3_state::pending;
      node.backup = id;
      tree.changed(node);
      parents.push_back(node.parent->is_root() ? page_key{} : node.parent->keys.back());
      parents.insert(parents.end(), node.keys.begin(), node.keys.end() - 1);
      keys.insert(keys.end(), node.keys.begin(), node.keys.end());
      pages.insert(pages.end(), node.host.begin(), node.host.end());
    }
    effects.push_back(
      backup_command{id, std::make_shared<const std::vector<page_key>>(std::move(keys)),
                     std::make_shared<const std::vector<page_key>>(std::move(parents)),
                     std::make_shared<const std::vector<page_index>>(std::move(pages))});
  }
  tree.unlock_device(*write.end);
  for (auto* node : leaving)
    tree.leave(*node);
  tree.unlock_host(*write.end);
}

void hi_radix_tree::impl::finish_load(const operation_queue::entry& load) {
  for (auto* node = load.end; !node->is_root(); node = node->parent)
    if (node->load == load.id)
      tree.finish_load(*node);
  tree.unlock_device(*load.end);
  tree.unlock_host(*load.end);
}

void hi_radix_tree::impl::finish_backup(const operation_queue::entry& backup) {
  for (auto* node = backup.end; !node->is_root(); node = node->parent)
    if (node->backup == backup.id) {
      node->backup = 0;
      node->l3 = l3_state::stored;
      tree.changed(*node);
    }
  tree.unlock_host(*backup.end);
}

// -- prefetches ---------------------------------------------------------------

void hi_radix_tree::impl::finish_fetches(const step_facts& facts,
                                         std::span<const page_list> arrived,
                                         std::vector<ready_request>& ready) {
  auto unused = std::vector<page_index>{};
  auto unfinished = std::vector<fetch_id>{};
  for (auto i = size_t{0}; i < ending.size(); ++i) {
    const auto id = ending[i];
    if (facts.fetched[i] < 0) {
      unfinished.push_back(id);
      continue;
    }
    const auto count = static_cast<uint64_t>(facts.fetched[i]);
    const auto present = arrived[i] ? arrived[i]->size() : 0;
    HICACHE_CHECK(count <= present);
    const auto entry = fetches.find(id);
    const auto fetch = std::move(entry->second);
    fetches_digest -= fetch.digest(id);
    fetches.erase(entry);
    HICACHE_CHECK(count <= fetch.keys->size() - fetch.first);
    tree.tick();
    const auto taken = place(fetch, count, arrived[i]);
    // Pages before and after the part that the tree took.
    for (auto k = size_t{0}; k < present; ++k)
      if (const auto at = fetch.first + k; at < taken.first || at >= taken.second)
        unused.push_back((*arrived[i])[k]);
    if (fetch.request != 0)
      ready.push_back(make_ready(requests.at(fetch.request), taken));
  }
  ending = std::move(unfinished);
  refill(std::move(unused));
}

std::pair<uint64_t, uint64_t> hi_radix_tree::impl::place(const open_fetch& fetch, uint64_t count,
                                                         const page_list& arrived) {
  const auto none = std::pair{fetch.first, fetch.first};
  auto* root = tree.find_root(fetch.ns);
  // Without a root there is nothing before the pages either, unless they are first.
  if (count == 0 || is_stopped || (root == nullptr && fetch.first > 0))
    return none;
  if (root == nullptr)
    root = &tree.root(fetch.ns);
  const auto to = fetch.first + count;
  const auto end = tree.walk(*root, *fetch.tokens, to);
  // The path may be gone, if the request is; or others may have brought the same pages.
  if (end.pages < fetch.first || end.pages == to)
    return none;
  const auto from = end.pages;
  auto& parent = tree.cut(end);
  const auto first = arrived->begin() + static_cast<ptrdiff_t>(from - fetch.first);
  auto pages = std::vector<page_index>(first, first + static_cast<ptrdiff_t>(to - from));
  for (const auto page : pages) {
    HICACHE_CHECK(page < in_reserve.size() && in_reserve[page]);
    in_reserve[page] = false;
  }
  reserve -= pages.size();
  const auto key = [&](uint64_t at) { return fetch.keys->begin() + static_cast<ptrdiff_t>(at); };
  const auto size = options.page_size;
  auto& node = tree.add(parent, token_span{fetch.tokens, from * size, tree.span_size(to - from)},
                        {}, std::move(pages), {key(from), key(to)}, l3_state::stored);
  tree.touch(node, 0);
  return {from, to};
}

ready_request hi_radix_tree::impl::make_ready(open_request& request,
                                              std::pair<uint64_t, uint64_t> taken) {
  before_change(request);
  request.fetch = 0;
  std::tie(request.fetched_from, request.fetched_to) = taken;
  // Pages of its own would no longer follow on the device part, if that grew.
  if (request.owned.empty() && !is_stopped)
    match_again(request, std::min(request.limit_pages, tree.whole_pages(request.tokens->size())));
  after_change(request);
  return {request.id, tokens(taken.second - taken.first), tokens(request.device_pages),
          tokens(request.host_pages)};
}

void hi_radix_tree::impl::refill(std::vector<page_index> unused) {
  for (const auto page : unused)
    HICACHE_CHECK(page < in_reserve.size() && in_reserve[page]);
  const auto available = tree.host_pool().free() + tree.totals().host_evictable;
  const auto wanted = options.storage_attached ? options.prefetch_reserve_pages : uint64_t{0};
  const auto lacking = std::min(wanted - std::min(wanted, reserve), available);
  const auto more = tree.take_host(lacking);
  HICACHE_CHECK(more);
  for (const auto page : *more)
    in_reserve[page] = true;
  reserve += more->size();
  unused.insert(unused.end(), more->begin(), more->end());
  if (!unused.empty())
    effects.push_back(
      refill_command{std::make_shared<const std::vector<page_index>>(std::move(unused))});
}

// -- state --------------------------------------------------------------------

uint64_t hi_radix_tree::impl::digest() const noexcept {
  const auto state = std::array<uint64_t, 19>{tree.digest(),
                                              writes.issued,
                                              writes.done,
                                              loads.issued,
                                              loads.done,
                                              backups.issued,
                                              backups.done,
                                              fetches_issued,
                                              reserve,
                                              requests.size(),
                                              requests_digest,
                                              fetches_digest,
                                              ending.size(),
                                              uint64_t{is_stopped},
                                              damage,
                                              pins_digest,
                                              pins.size(),
                                              handle_locks_count,
                                              static_cast<uint64_t>(now_ns)};
  return XXH3_64bits(state.data(), sizeof(state));
}

} // namespace hicache
