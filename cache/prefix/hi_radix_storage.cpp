// What moves between L2 and L3: backups, prefetches, and L3 itself coming and going.

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"
#include "cache/hash/page_hash.hpp"
#include "cache/prefix/hi_radix_impl.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

template <class T>
std::shared_ptr<const std::vector<T>> share(std::vector<T> list) {
  return std::make_shared<const std::vector<T>>(std::move(list));
}

/// True if some of the path is being written to L2 or L3.
bool is_under_way(radix_node& end) {
  const auto moves
    = [](const radix_node& each) { return each.write != 0 || each.l3 == l3_state::pending; };
  return !path_nodes(end, moves).empty();
}

/// True if L3 takes the children of this node.
bool is_stored(const radix_node& node) noexcept {
  return node.is_root() || node.l3 == l3_state::stored;
}

} // namespace

// -- backups ------------------------------------------------------------------

void hi_radix_tree::impl::back_up_path(radix_node& end) {
  if (!options.storage_attached || is_stopped)
    return;
  // Below pages that are being loaded hangs what was computed from them: it may yet be wrong.
  auto* last = &end;
  for (auto* node = &end; !node->is_root(); node = node->parent)
    if (node->load != 0)
      last = node;
  auto run = std::vector<radix_node*>{};
  for (auto* node :
       path_nodes(*last, [](const radix_node& each) { return each.l3 == l3_state::unknown; })) {
    const auto follows = run.empty() ? is_stored(*node->parent) : node->parent == run.back();
    if (follows && node->host_resident())
      run.push_back(node);
    else if (!run.empty())
      break;
  }
  if (!run.empty())
    begin_backup(run);
}

void hi_radix_tree::impl::begin_backup(const std::vector<radix_node*>& nodes) {
  auto keys = std::vector<page_key>{};
  auto parents = std::vector<page_key>{};
  auto pages = std::vector<page_index>{};
  const auto id = ++backups_issued;
  auto& end = *nodes.back();
  auto* bare = nodes.front()->parent;
  while (!bare->is_root() && bare->host_resident())
    bare = bare->parent;
  if (!bare->is_root())
    tree.lock_device(*bare);
  tree.lock_host(end);
  for (auto* node : nodes) {
    node->l3 = l3_state::pending;
    node->backup = id;
    tree.changed(*node);
    parents.push_back(node->parent->is_root() ? page_key{} : node->parent->keys.back());
    parents.insert(parents.end(), node->keys.begin(), node->keys.end() - 1);
    keys.insert(keys.end(), node->keys.begin(), node->keys.end());
    pages.insert(pages.end(), node->host.begin(), node->host.end());
  }
  backups.emplace(id,
                  open_backup{&end, keys.size(), storage_epoch, bare->is_root() ? nullptr : bare});
  open_backups.insert(open_backups.end() - static_cast<ptrdiff_t>(held_backups), id);
  backup_pages += keys.size();
  effects.push_back(backup_command{id, share(std::move(keys)), share(std::move(parents)),
                                   share(std::move(pages)), tenant_of(end.root().ns->salt)});
  for (auto oldest = backups.begin(); backup_pages > options.backup_limit_pages; ++oldest)
    drop_backup(oldest->first, oldest->second);
}

void hi_radix_tree::impl::drop_backup(operation_id id, open_backup& backup) {
  if (std::exchange(backup.is_dropped, true))
    return;
  backup_pages -= backup.pages;
  effects.push_back(drop_command{id});
}

std::vector<hi_radix_tree::impl::backup_fact>
hi_radix_tree::impl::name_backups(std::span<const int64_t> stored) const {
  auto facts = std::vector<backup_fact>{};
  for (auto i = size_t{0}; i < stored.size(); ++i)
    if (stored[i] >= 0 || stored[i] == backup_given_up)
      facts.emplace_back(open_backups[i], stored[i]);
  return facts;
}

void hi_radix_tree::impl::finish_backups(std::span<const backup_fact> facts) {
  for (const auto& [id, pages] : facts) {
    const auto is_held = backups.at(id).is_in_quarantine;
    if (pages >= 0 && is_held)
      release_backup(id);
    else if (pages >= 0)
      finish_backup(id, static_cast<uint64_t>(pages));
    else if (!is_held)
      give_up_backup(id);
  }
}

void hi_radix_tree::impl::give_up_backup(operation_id id) {
  auto& backup = backups.at(id);
  drop_backup(id, backup); // Ranks that have not begun it need not.
  backup.is_in_quarantine = true;
  quarantined += backup.pages;
  std::erase(open_backups, id);
  open_backups.push_back(id);
  ++held_backups;
  for (auto* node :
       path_nodes(*backup.end, [id](const radix_node& each) { return each.backup == id; })) {
    node->backup = 0;
    node->l3 = l3_state::unknown;
    tree.changed(*node);
  }
}

void hi_radix_tree::impl::release_backup(operation_id id) {
  const auto backup = backups.extract(id).mapped();
  std::erase(open_backups, id);
  --held_backups;
  quarantined -= backup.pages;
  tree.unlock_host(*backup.end);
  if (backup.device_end != nullptr)
    tree.unlock_device(*backup.device_end);
}

void hi_radix_tree::impl::finish_backup(operation_id id, uint64_t stored) {
  const auto entry = backups.find(id);
  const auto backup = entry->second;
  HICACHE_CHECK(stored <= backup.pages);
  backups.erase(entry);
  std::erase(open_backups, id);
  if (!backup.is_dropped)
    backup_pages -= backup.pages;
  const auto is_valid = options.storage_attached && backup.epoch == storage_epoch;
  auto done = uint64_t{0};
  auto waiting = std::vector<radix_node*>{};
  for (auto* node :
       path_nodes(*backup.end, [id](const radix_node& each) { return each.backup == id; })) {
    done += node->pages;
    node->backup = 0;
    node->l3 = is_valid && done <= stored ? l3_state::stored : l3_state::unknown;
    tree.changed(*node);
    if (node->l3 == l3_state::stored && !node->is_discarded)
      node->children.visit([&](const first_page&, radix_node& child) {
        if (child.l3 == l3_state::unknown && child.host_resident())
          waiting.push_back(&child);
      });
  }
  HICACHE_CHECK(done == backup.pages);
  tree.unlock_host(*backup.end);
  if (backup.device_end != nullptr)
    tree.unlock_device(*backup.device_end);
  // The order of a visit is not defined.
  std::ranges::sort(waiting, {}, &radix_node::id);
  for (auto* child : waiting)
    back_up_path(*child);
}

// -- staging ------------------------------------------------------------------

void hi_radix_tree::impl::want_staged(const radix_node& end) {
  if (!options.storage_attached || options.host_pages == 0 || is_stopped || end.is_root())
    return;
  if (unstaged.size() == limits::unstaged_paths)
    unstaged.pop_front();
  unstaged.push_back(end.id);
}

std::vector<radix_node*> hi_radix_tree::impl::unstaged_run(radix_node& end) const {
  auto run = std::vector<radix_node*>{};
  for (auto* node :
       path_nodes(end, [](const radix_node& each) { return each.l3 == l3_state::unknown; })) {
    const auto follows = run.empty() ? is_stored(*node->parent) : node->parent == run.back();
    if (!follows || !node->host.empty() || node->use.hits < least_hits())
      break;
    run.push_back(node);
  }
  return run;
}

void hi_radix_tree::impl::stage() {
  if (is_stopped)
    unstaged.clear();
  const auto most = std::max<uint64_t>(1, options.host_pages / limits::staging_part);
  for (auto left = unstaged.size(); left > 0 && writing_pages + backup_pages < most; --left) {
    const auto id = unstaged.front();
    auto* end = tree.find(id);
    auto run = end == nullptr ? std::vector<radix_node*>{} : unstaged_run(*end);
    auto count = writing_pages + backup_pages;
    if (!run.empty() && count > 0 && count + run.front()->pages > most)
      return; // Until L3 has some of what is staged.
    unstaged.pop_front();
    // What follows on the run, or on what is under way already, waits for its parent.
    if (end != nullptr && (!run.empty() || is_under_way(*end)))
      unstaged.push_back(id);
    if (!run.empty() && run.front()->pages > most)
      run = {&tree.cut({run.front(), run.front()->first + most})};
    auto nodes = std::vector<radix_node*>{};
    for (auto* node : run) {
      count += node->pages;
      if (count > most || !take_copy(*node))
        break;
      nodes.push_back(node);
    }
    if (!nodes.empty())
      begin_write(nodes);
  }
}

// -- prefetches begin ---------------------------------------------------------

uint64_t open_fetch::digest(fetch_id id) const noexcept {
  auto waiting = uint64_t{0};
  for (const auto request : requests)
    waiting = mix(waiting, request);
  return mix(mix(id, waiting), mix(first, uint64_t{is_terminated}));
}

key_list hi_radix_tree::impl::keys_of_prefix(const open_request& request) const {
  const auto& end = request.host_end != nullptr ? *request.host_end : *request.device_end;
  auto keys = std::vector<page_key>(request.matched_pages());
  for (const auto* node = &end; !node->is_root(); node = node->parent)
    std::copy(node->keys.begin(), node->keys.end(),
              keys.begin() + static_cast<ptrdiff_t>(node->first));
  const auto* prior = end.keys.empty() ? nullptr : &end.keys.back();
  const auto size = options.page_size;
  const auto tail = std::span{*request.tokens}.subspan(
    keys.size() * size, tree.span_size(request.limit_pages - keys.size()));
  const auto rest = hash_pages(tail, size, prior, tree.options().overlap);
  keys.insert(keys.end(), rest.begin(), rest.end());
  return share(std::move(keys));
}

uint64_t hi_radix_tree::impl::wanted_pages(const open_request& request) const {
  const auto matched = request.matched_pages();
  if (is_stopped || request.has_failed() || !options.storage_attached || options.host_pages == 0
      || request.limit_pages <= matched || fetches.size() >= limits::prefetches_open)
    return 0;
  const auto pages = request.limit_pages - matched;
  return tokens(pages) >= options.prefetch.threshold_tokens ? pages : 0;
}

result<prefetch_result> hi_radix_tree::impl::prefetch(request_id id) {
  const auto found = find(id);
  if (!found)
    return tl::unexpected{found.error()};
  auto& request = **found;
  const auto wanted = request.had_fetch ? 0 : wanted_pages(request);
  if (wanted == 0)
    return prefetch_result{};
  before_change(request);
  request.keys = keys_of_prefix(request);
  request.keyed_tokens = request.tokens;
  request.had_fetch = true;
  request.wanted_tokens = tokens(wanted);
  begin_fetch(request);
  if (options.prefetch.policy == prefetch_policy::timeout)
    untimed.push_back(id);
  after_change(request);
  return prefetch_result{tokens(wanted)};
}

uint64_t hi_radix_tree::impl::shared_end(const open_request& request, const open_fetch& fetch) {
  // Names are chained, so equal names mean equal names before them.
  const auto first = request.keys->begin();
  const auto both = std::min(request.keys->size(), fetch.keys->size());
  const auto is_shared = [&](const auto& name) { return name == (*fetch.keys)[&name - &*first]; };
  return static_cast<uint64_t>(std::partition_point(first, first + both, is_shared) - first);
}

void hi_radix_tree::impl::begin_fetch(open_request& request) {
  const auto first = request.matched_pages();
  const auto brings_enough = [&](const open_fetch& fetch) {
    if (fetch.is_terminated || fetch.first > first || fetch.keys->size() <= first
        || (*fetch.keys)[first] != (*request.keys)[first])
      return false;
    return tokens(shared_end(request, fetch) - first) >= options.prefetch.threshold_tokens;
  };
  for (auto& [id, fetch] : fetches) {
    if (!brings_enough(fetch))
      continue;
    fetches_digest -= fetch.digest(id);
    fetch.requests.push_back(request.id);
    fetches_digest += fetch.digest(id);
    request.fetch = id;
    return;
  }
  request.fetch = ++fetches_issued;
  auto fetch = open_fetch{{request.id},  *request.root->ns, options.storage_backend,
                          storage_epoch, request.tokens,    request.keys,
                          first};
  fetches_digest += fetch.digest(request.fetch);
  fetches.emplace(request.fetch, std::move(fetch));
  open_fetches.push_back(request.fetch);
  const auto least = options.prefetch.threshold_tokens + options.page_size - 1;
  effects.push_back(fetch_command{request.fetch, request.keys, first, least / options.page_size});
}

// -- prefetches are told to end -----------------------------------------------

result<schedule_result> hi_radix_tree::impl::schedule(request_id id) {
  const auto found = find(id);
  if (!found)
    return tl::unexpected{found.error()};
  auto& request = **found;
  if (request.fetch == 0)
    return schedule_result{true};
  before_change(request);
  request.is_scheduled = true;
  after_change(request);
  if (must_stop(request))
    terminate(request.fetch, fetches.at(request.fetch));
  return schedule_result{false};
}

bool hi_radix_tree::impl::must_stop(const open_request& request) const noexcept {
  return request.is_scheduled
         && (request.is_overdue || options.prefetch.policy == prefetch_policy::best_effort);
}

void hi_radix_tree::impl::terminate(fetch_id id, open_fetch& fetch) {
  if (fetch.is_terminated)
    return;
  fetches_digest -= fetch.digest(id);
  fetch.is_terminated = true;
  fetches_digest += fetch.digest(id);
  effects.push_back(terminate_command{id});
}

void hi_radix_tree::impl::stop_overdue() {
  for (const auto id : std::exchange(untimed, {})) {
    const auto entry = requests.find(id);
    if (entry == requests.end() || entry->second.fetch == 0 || entry->second.stop_ns != 0)
      continue;
    auto& request = entry->second;
    const auto& rule = options.prefetch;
    const auto time
      = rule.timeout_base
        + rule.timeout_per_ki_token * static_cast<int64_t>(request.wanted_tokens) / 1024;
    before_change(request);
    request.stop_ns = now_ns + std::min(time, rule.timeout_max).count();
    after_change(request);
    stop_times.emplace(request.stop_ns, id);
  }
  while (!stop_times.empty() && stop_times.begin()->first <= now_ns) {
    auto& request = requests.at(stop_times.begin()->second);
    stop_times.erase(stop_times.begin());
    before_change(request);
    request.is_overdue = true;
    after_change(request);
    if (must_stop(request))
      terminate(request.fetch, fetches.at(request.fetch));
  }
}

void hi_radix_tree::impl::forget_stop_time(open_request& request) {
  stop_times.erase({request.stop_ns, request.id});
}

// -- prefetches end -----------------------------------------------------------

void hi_radix_tree::impl::finish_fetches(const step_facts& facts,
                                         std::span<const page_list> arrived,
                                         std::vector<ready_request>& ready) {
  auto unused = std::vector<page_index>{};
  auto ended = std::vector<std::pair<fetch_id, size_t>>{};
  for (auto i = size_t{0}; i < facts.fetches.size(); ++i)
    if (facts.fetches[i].arrived >= 0)
      ended.emplace_back(open_fetches[i], i);
  const auto later = static_cast<uint64_t>(facts.next_fetch) + facts.fetches.size();
  const auto next = facts.next_fetch == step_facts::no_fetch ? fetch_id{0} : open_fetches.at(later);
  std::ranges::sort(ended); // By issue, whoever has the first turn.
  for (const auto& [id, i] : ended) {
    const auto& fact = facts.fetches[i];
    const auto count = static_cast<uint64_t>(fact.arrived);
    const auto present = arrived[i] ? arrived[i]->size() : 0;
    HICACHE_CHECK(count <= present);
    const auto entry = fetches.find(id);
    const auto fetch = std::move(entry->second);
    fetches_digest -= fetch.digest(id);
    fetches.erase(entry);
    std::erase(open_fetches, id);
    HICACHE_CHECK(count <= fetch.keys->size() - fetch.first);
    tree.tick();
    const auto taken = place(fetch, count, arrived[i]);
    // Pages before and after the part that the tree took.
    for (auto k = size_t{0}; k < present; ++k)
      if (const auto at = fetch.first + k; at < taken.first || at >= taken.second)
        unused.push_back((*arrived[i])[k]);
    for (const auto request : fetch.requests)
      finish_waiting(requests.at(request), fetch, fact, taken, ready);
  }
  if (next != 0)
    turn_to(next);
  refill(std::move(unused));
  reclaim();
}

void hi_radix_tree::impl::turn_to(fetch_id id) {
  const auto next = std::ranges::find(open_fetches, id);
  std::rotate(open_fetches.begin(), next, open_fetches.end());
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
  const auto is_valid = options.storage_attached && fetch.epoch == storage_epoch;
  const auto l3 = is_valid ? l3_state::stored : l3_state::unknown;
  auto& node = tree.add(parent, token_span{fetch.tokens, from * size, tree.span_size(to - from)},
                        {}, std::move(pages), {key(from), key(to)}, l3);
  tree.touch(node, 0);
  return {from, to};
}

void hi_radix_tree::impl::finish_waiting(open_request& request, const open_fetch& fetch,
                                         const fetch_fact& fact,
                                         std::pair<uint64_t, uint64_t> taken,
                                         std::vector<ready_request>& ready) {
  before_change(request);
  const auto shared = shared_end(request, fetch);
  const auto arrived = std::min(shared, fetch.first + static_cast<uint64_t>(fact.arrived));
  const auto found = std::min(shared, fetch.first + static_cast<uint64_t>(fact.found));
  request.fetch = 0;
  request.known_pages = std::max({request.known_pages, arrived, found});
  if (found > arrived || fact.found == 0)
    request.why = std::min(request.why, fact.why);
  const auto brought = std::pair{taken.first, std::min(taken.second, shared)};
  if (brought.first < brought.second) {
    request.storage_backend = fetch.backend;
    if (brought.first != request.fetched_to || request.fetched_from == request.fetched_to)
      request.fetched_from = brought.first;
    request.fetched_to = brought.second;
  }
  // Pages of its own would no longer follow on the device part, if that grew.
  if (request.owned.empty() && !is_stopped && !request.has_failed())
    match_again(request, std::min(request.limit_pages, tree.whole_pages(request.tokens->size())));
  // The rest of what it wants was never asked for, or the fetch was ended for another's sake.
  const auto is_cut_short = arrived == shared || fetch.is_terminated;
  if (is_cut_short && !must_stop(request) && request.owned.empty()
      && request.matched_pages() >= arrived && request.keyed_tokens == request.tokens
      && wanted_pages(request) > 0) {
    begin_fetch(request);
    after_change(request);
    return;
  }
  forget_stop_time(request);
  after_change(request);
  ready.push_back({request.id, tokens(request.fetched_to - request.fetched_from),
                   tokens(request.device_pages), tokens(request.host_pages)});
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
    effects.push_back(refill_command{share(std::move(unused))});
}

// -- L3 comes and goes --------------------------------------------------------

void hi_radix_tree::impl::change_storage(const storage_change& change) {
  switch (change.what) {
    case storage_change::action::attach:
      ++storage_epoch;
      options.storage_attached = true;
      options.storage_backend = change.backend;
      options.prefetch = change.prefetch;
      tree.set_lends_host(change.lends_host);
      is_released = false;
      tree.name_pages();
      refill({});
      return;
    case storage_change::action::detach:
      options.storage_attached = false;
      for (auto& [id, fetch] : fetches)
        terminate(id, fetch);
      for (auto& [id, backup] : backups)
        drop_backup(id, backup);
      unstaged.clear();
      // The next store may lack what this one has.
      for (auto* node : tree.sorted_nodes())
        if (node->l3 == l3_state::stored) {
          node->l3 = l3_state::unknown;
          tree.changed(*node);
        }
      tree.set_lends_host(false);
      return;
    case storage_change::action::release:
      is_released = !options.storage_attached;
      reclaim();
      return;
  }
}

void hi_radix_tree::impl::reclaim() {
  if (!is_released || reserve == 0 || !fetches.empty())
    return;
  auto pages = std::vector<page_index>{};
  for (auto page = page_index{1}; page < in_reserve.size(); ++page)
    if (in_reserve[page])
      pages.push_back(page);
  tree.host_pool().give_back(pages);
  in_reserve.assign(in_reserve.size(), false);
  reserve = 0;
  effects.push_back(reclaim_command{});
}

} // namespace hicache
