#include "cache/prefix/open_fetches.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"
#include "cache/hash/page_hash.hpp"
#include "cache/hash/page_names.hpp"
#include "cache/radix/prefix_key.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

namespace hicache {

open_fetches::open_fetches(radix_tree& tree, open_requests& requests,
                           const cache_settings& settings, std::vector<tree_effect>& effects)
  : tree_(tree), requests_(requests), settings_(settings), effects_(effects),
    is_staging_(uint64_t{settings.options.l2_pages} + 1) {
  // nop
}

uint64_t open_fetches::digest_of(const open_fetch& fetch) noexcept {
  auto waiting = uint64_t{0};
  for (const auto request : fetch.requests)
    waiting = mix(waiting, request);
  return mix(mix(fetch.id, waiting), mix(fetch.first, uint64_t{fetch.is_terminated}));
}

// -- prefetches begin ---------------------------------------------------------

/// Pages of the prefix that the request could still get from L3; 0 below the threshold.
uint64_t open_fetches::wanted_pages(const open_request& request) const {
  const auto& options = settings_.options;
  const auto matched = request.matched_pages();
  if (settings_.is_stopped || request.has_failed() || !options.storage_attached
      || options.l2_pages == 0 || request.limit_pages <= matched
      || fetches_.size() >= limits::prefetches_open)
    return 0;
  const auto pages = request.limit_pages - matched;
  return pages >= threshold_pages() ? pages : 0;
}

/// The fewest pages that are worth a fetch, at least 1.
uint64_t open_fetches::threshold_pages() const noexcept {
  const auto size = settings_.options.page_size;
  return std::max<uint64_t>(1, (settings_.options.prefetch.threshold_tokens + size - 1) / size);
}

uint64_t open_fetches::begin(request_id id) {
  const auto& found = requests_.at(id);
  const auto wanted = found.had_fetch ? 0 : wanted_pages(found);
  if (wanted == 0)
    return 0;
  const auto request = requests_.change(id);
  request->fetched_tokens = request->tokens;
  request->had_fetch = true;
  request->wanted_tokens = settings_.tokens(wanted);
  join_or_issue(*request);
  if (settings_.options.prefetch.policy == prefetch_policy::timeout)
    untimed_.push_back(id);
  return request->wanted_tokens;
}

void open_fetches::join_or_issue(open_request& request) {
  if (const auto other = find_to_join(request); other != 0) {
    fetches_.change(other)->requests.push_back(request.id);
    request.fetch = other;
    return;
  }
  const auto& options = settings_.options;
  const auto id = ++issued_;
  const auto first = request.matched_pages();
  const auto tail = token_span{request.tokens, first * options.page_size,
                               tree_.span_size(request.limit_pages - first)};
  auto before = tree_.names_of(request.end());
  auto names = tree_.names_after(before, tail);
  fetches_.insert(id, {id,
                       {request.id},
                       request.root->ns(),
                       options.storage_backend,
                       settings_.storage_epoch,
                       settings_.now_ns,
                       request.tokens,
                       first,
                       names});
  prefixes_.insert(entry_of(fetches_.at(id)));
  order_.push_back(id);
  request.fetch = id;
  const auto least = options.prefetch.threshold_tokens + options.page_size - 1;
  effects_.push_back(fetch_command{
    id, std::make_shared<const path_names>(std::vector{std::move(names)}, std::move(before)),
    least / options.page_size, tenant_of(request.root->ns().salt), first});
}

/// The oldest fetch that brings enough of what follows the request's match, or 0.
fetch_id open_fetches::find_to_join(const open_request& request) const {
  const auto first = request.matched_pages();
  const auto wanted
    = prefix_entry{&request.root->ns(),
                   std::span{*request.tokens}.first(tree_.span_size(first + threshold_pages())), 0};
  auto oldest = fetch_id{0};
  for (auto i = prefixes_.lower_bound(wanted); i != prefixes_.end() && i->begins_with(wanted); ++i)
    if (const auto& fetch = fetches_.at(i->id);
        !fetch.is_terminated && fetch.first <= first && (oldest == 0 || fetch.id < oldest))
      oldest = fetch.id;
  return oldest;
}

open_fetches::prefix_entry open_fetches::entry_of(const open_fetch& fetch) const noexcept {
  return {&fetch.ns, std::span{*fetch.tokens}.first(tree_.span_size(fetch.end())), fetch.id};
}

bool open_fetches::prefix_entry::begins_with(const prefix_entry& other) const noexcept {
  const auto count = other.tokens.size();
  return *ns == *other.ns && tokens.size() >= count
         && equal_tokens(tokens.data(), other.tokens.data(), count) == count;
}

bool open_fetches::prefix_order::operator()(const prefix_entry& a,
                                            const prefix_entry& b) const noexcept {
  if (const auto order = *a.ns <=> *b.ns; order != 0)
    return order < 0;
  const auto both = std::min(a.tokens.size_bytes(), b.tokens.size_bytes());
  const auto order
    = a.tokens.data() == b.tokens.data() ? 0 : std::memcmp(a.tokens.data(), b.tokens.data(), both);
  return order != 0 ? order < 0
                    : std::pair{a.tokens.size(), a.id} < std::pair{b.tokens.size(), b.id};
}

open_fetches::open_fetch open_fetches::take(fetch_id id) {
  prefixes_.erase(entry_of(fetches_.at(id)));
  std::erase(order_, id);
  return fetches_.take(id);
}

/// Where the request diverges from the fetch, in pages of the prefix.
uint64_t open_fetches::shared_end(const open_request& request,
                                  const open_fetch& fetch) const noexcept {
  const auto both = std::min(request.limit_pages, fetch.end());
  const auto& options = settings_.options;
  return request.fetched_tokens == fetch.tokens
           ? both
           : equal_pages(request.fetched_tokens->data(), fetch.tokens->data(), both,
                         options.page_size, options.bigram ? 1 : 0);
}

// -- prefetches are terminated ------------------------------------------------

bool open_fetches::schedule(request_id id) {
  if (requests_.at(id).fetch == 0)
    return true;
  requests_.change(id)->is_scheduled = true;
  if (const auto& request = requests_.at(id); has_expired(request))
    terminate(request.fetch);
  return false;
}

/// True if the request must run with what has arrived.
bool open_fetches::has_expired(const open_request& request) const noexcept {
  return request.is_scheduled
         && (request.is_past_deadline
             || settings_.options.prefetch.policy == prefetch_policy::best_effort);
}

void open_fetches::terminate(fetch_id id) {
  if (fetches_.at(id).is_terminated)
    return;
  fetches_.change(id)->is_terminated = true;
  effects_.push_back(terminate_command{id});
}

void open_fetches::terminate_all() {
  for (const auto& [id, fetch] : fetches_)
    terminate(id);
}

void open_fetches::leave(request_id id) {
  const auto& request = requests_.at(id);
  deadlines_.erase({request.deadline_ns, id});
  if (request.fetch == 0)
    return;
  std::erase(fetches_.change(request.fetch)->requests, id);
  if (fetches_.at(request.fetch).requests.empty())
    terminate(request.fetch);
}

void open_fetches::expire_fetches() {
  for (const auto id : std::exchange(untimed_, {})) {
    if (!requests_.contains(id) || requests_.at(id).fetch == 0 || requests_.at(id).deadline_ns != 0)
      continue;
    const auto& rule = settings_.options.prefetch;
    const auto request = requests_.change(id);
    const auto time
      = rule.timeout_base
        + rule.timeout_per_ki_token * static_cast<int64_t>(request->wanted_tokens) / 1024;
    request->deadline_ns = settings_.now_ns + std::min(time, rule.timeout_max).count();
    deadlines_.emplace(request->deadline_ns, id);
  }
  while (!deadlines_.empty() && deadlines_.begin()->first <= settings_.now_ns) {
    const auto id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    requests_.change(id)->is_past_deadline = true;
    if (const auto& request = requests_.at(id); has_expired(request))
      terminate(request.fetch);
  }
}

// -- prefetches end -----------------------------------------------------------

std::span<const fetch_id> open_fetches::next() const noexcept {
  return std::span{order_}.first(std::min(order_.size(), limits::step_fetches));
}

std::optional<int64_t> open_fetches::next_deadline_ns() const noexcept {
  return deadlines_.empty() ? std::nullopt : std::optional{deadlines_.begin()->first};
}

void open_fetches::check_facts(const step_facts& facts, std::span<const page_list> arrived) const {
  HICACHE_CHECK(facts.fetches.size() == next().size() && arrived.size() == next().size());
  HICACHE_CHECK(
    facts.next_fetch == step_facts::no_fetch
    || (facts.next_fetch >= 0 && static_cast<uint64_t>(facts.next_fetch) < later().size()));
}

std::vector<ready_request> open_fetches::finish(const step_facts& facts,
                                                std::span<const page_list> arrived) {
  auto ready = std::vector<ready_request>{};
  auto unused = std::vector<page_index>{};
  auto ended = std::vector<std::pair<fetch_id, size_t>>{};
  for (auto i = size_t{0}; i < facts.fetches.size(); ++i)
    if (facts.fetches[i].arrived >= 0)
      ended.emplace_back(order_[i], i);
  const auto turn = facts.next_fetch == step_facts::no_fetch
                      ? fetch_id{0}
                      : later()[static_cast<size_t>(facts.next_fetch)];
  std::ranges::sort(ended); // In issue order, independent of turns.
  for (const auto& [id, i] : ended) {
    const auto& fact = facts.fetches[i];
    const auto count = static_cast<uint64_t>(fact.arrived);
    const auto present = arrived[i] ? arrived[i]->size() : 0;
    HICACHE_CHECK(count <= present);
    const auto fetch = take(id);
    HICACHE_CHECK(count <= fetch.names.count);
    tree_.tick();
    const auto taken = place(fetch, count, arrived[i]);
    // Pages outside the part that the tree took.
    for (auto k = size_t{0}; k < present; ++k)
      if (const auto at = fetch.first + k; at < taken.first || at >= taken.second)
        unused.push_back((*arrived[i])[k]);
    for (const auto request : fetch.requests)
      finish_waiting(*requests_.change(request), fetch, fact, taken, ready);
  }
  if (turn != 0) // The next step begins with this fetch.
    std::rotate(order_.begin(), std::ranges::find(order_, turn), order_.end());
  fill_staging(std::move(unused));
  reclaim();
  return ready;
}

/// Enters arrived pages as L2 nodes.
/// @returns the part of the prefix that the tree took.
open_fetches::page_range open_fetches::place(const open_fetch& fetch, uint64_t count,
                                             const page_list& arrived) {
  const auto none = page_range{fetch.first, fetch.first};
  auto* root = tree_.find_root(fetch.ns);
  // Without a root, only the first pages of a prefix can be placed.
  if (count == 0 || settings_.is_stopped || (root == nullptr && fetch.first > 0))
    return none;
  if (root == nullptr)
    root = &tree_.root(fetch.ns);
  const auto to = fetch.first + count;
  const auto end = tree_.walk(*root, *fetch.tokens, to);
  // The path may have been evicted since, or the pages may have arrived otherwise.
  if (end.pages < fetch.first || end.pages == to)
    return none;
  const auto from = end.pages;
  auto& parent = tree_.cut(end);
  const auto first = arrived->begin() + static_cast<ptrdiff_t>(from - fetch.first);
  auto pages = std::vector<page_index>(first, first + static_cast<ptrdiff_t>(to - from));
  for (const auto page : pages) {
    HICACHE_CHECK(page < is_staging_.size() && is_staging_[page]);
    is_staging_[page] = false;
  }
  staging_ -= pages.size();
  auto names = fetch.names;
  names.cut_front(from - fetch.first);
  names.count = to - from;
  const auto size = settings_.options.page_size;
  const auto l3 = settings_.is_attached_since(fetch.epoch) ? l3_state::stored : l3_state::unknown;
  auto& node = tree_.add(parent, token_span{fetch.tokens, from * size, tree_.span_size(to - from)},
                         {}, std::move(pages), std::move(names), l3);
  node_edit{tree_, node}.end_backup(l3, fetch.begun_ns);
  tree_.touch(node, 0);
  return {from, to};
}

/// Continues a request whose fetch has ended: it is ready, or fetches the rest.
void open_fetches::finish_waiting(open_request& request, const open_fetch& fetch,
                                  const fetch_fact& fact, page_range taken,
                                  std::vector<ready_request>& ready) {
  const auto shared = shared_end(request, fetch);
  const auto arrived = std::min(shared, fetch.first + static_cast<uint64_t>(fact.arrived));
  const auto found = std::min(shared, fetch.first + static_cast<uint64_t>(fact.found));
  request.fetch = 0;
  request.known_pages = std::max({request.known_pages, arrived, found});
  if (found > arrived || fact.found == 0)
    request.why = std::min(request.why, fact.why);
  const auto brought = page_range{taken.first, std::min(taken.second, shared)};
  if (brought.first < brought.second) {
    request.storage_backend = fetch.backend;
    if (brought.first != request.fetched_to || request.fetched_from == request.fetched_to) {
      request.fetched_from = brought.first;
      request.fetched_above.fill(0);
    }
    request.fetched_to = brought.second;
    for (auto tier = size_t{0}; tier < request.fetched_above.size(); ++tier)
      request.fetched_above[tier]
        += std::min(static_cast<uint64_t>(fact.from_above[tier]), brought.second - brought.first);
    request.tiers = fact.tiers;
  }
  if (fact.found > 0) {
    request.load_ns = fact.load_ns;
    request.compute_ns = fact.compute_ns;
  }
  // A longer L1 part would no longer be adjacent to the request's own pages.
  if (request.owned.empty() && !settings_.is_stopped && !request.has_failed())
    requests_.rematch(request,
                      std::min(request.limit_pages, tree_.whole_pages(request.tokens->size())));
  // The rest was not part of the fetch, or another request's policy terminated it.
  const auto is_cut_short = arrived == shared || fetch.is_terminated;
  if (is_cut_short && !has_expired(request) && request.owned.empty()
      && request.matched_pages() >= arrived && request.fetched_tokens == request.tokens
      && wanted_pages(request) > 0)
    return join_or_issue(request);
  deadlines_.erase({request.deadline_ns, request.id});
  const auto tokens = [this](uint64_t pages) { return settings_.tokens(pages); };
  ready.push_back({request.id, tokens(request.fetched_to - request.fetched_from),
                   tokens(request.l1_pages), tokens(request.l2_pages)});
}

// -- the staging pool ---------------------------------------------------------

void open_fetches::fill_staging(std::vector<page_index> unused) {
  for (const auto page : unused)
    HICACHE_CHECK(page < is_staging_.size() && is_staging_[page]);
  const auto& options = settings_.options;
  const auto wanted = options.storage_attached ? options.prefetch_reserve_pages : uint64_t{0};
  const auto lacking = std::min(wanted - std::min(wanted, staging_), tree_.l2_available());
  const auto more = tree_.take_l2(lacking);
  HICACHE_CHECK(more);
  for (const auto page : *more)
    is_staging_[page] = true;
  staging_ += more->size();
  unused.insert(unused.end(), more->begin(), more->end());
  if (!unused.empty())
    effects_.push_back(staging_command{share_pages(std::move(unused))});
}

void open_fetches::release_staging() {
  is_released_ = !settings_.options.storage_attached;
  reclaim();
}

void open_fetches::reclaim() {
  if (!is_released_ || staging_ == 0 || !fetches_.empty())
    return;
  tree_.l2_pool().give_back(reserved());
  is_staging_.assign(is_staging_.size(), false);
  staging_ = 0;
  effects_.push_back(reclaim_command{});
}

std::vector<page_index> open_fetches::reserved() const {
  auto pages = std::vector<page_index>{};
  for (auto page = page_index{1}; page < is_staging_.size(); ++page)
    if (is_staging_[page])
      pages.push_back(page);
  return pages;
}

// -- state --------------------------------------------------------------------

std::array<uint64_t, 4> open_fetches::digest() const noexcept {
  return {issued_, staging_, mix(fetches_.digest(), order_.empty() ? 0 : order_.front()),
          deadlines_.size() + untimed_.size()};
}

void open_fetches::check_invariants() const {
  fetches_.check_digest();
  auto ids = std::vector<fetch_id>{};
  for (const auto& [id, fetch] : fetches_) {
    ids.push_back(id);
    for (const auto request : fetch.requests)
      HICACHE_CHECK(requests_.at(request).fetch == id);
    HICACHE_CHECK(!fetch.requests.empty() || fetch.is_terminated);
    HICACHE_CHECK(prefixes_.contains(entry_of(fetch)));
  }
  HICACHE_CHECK(std::ranges::is_permutation(order_, ids));
  HICACHE_CHECK(prefixes_.size() == fetches_.size());
  requests_.visit([this](const open_request& request) {
    HICACHE_CHECK(request.fetch == 0
                  || std::ranges::count(fetches_.at(request.fetch).requests, request.id) == 1);
    HICACHE_CHECK(request.deadline_ns == 0 || request.is_past_deadline || request.fetch == 0
                  || deadlines_.contains({request.deadline_ns, request.id}));
  });
  for (const auto& [deadline_ns, id] : deadlines_)
    HICACHE_CHECK(requests_.at(id).deadline_ns == deadline_ns && requests_.at(id).fetch != 0);
  HICACHE_CHECK(reserved().size() == staging_
                && staging_ <= settings_.options.prefetch_reserve_pages);
}

} // namespace hicache
