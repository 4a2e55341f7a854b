// prefix_cache: operations without a request, steps, state.

#include "cache/prefix/prefix_cache.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"
#include "base/overloaded.hpp"
#include "base/try.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>

namespace hicache {

namespace {

radix_options radix_options_of(const tree_options& options) {
  // A cache that shares nothing has no nodes; its pages are always allocated newest first.
  const auto order = options.share_prefixes ? options.order : page_order::newest_first;
  return {.page_size = options.page_size,
          .overlap = options.bigram ? 1U : 0U,
          .l1_pages = options.l1_pages,
          .l2_pages = options.l2_pages,
          .eviction = options.eviction,
          .order = order,
          .events = options.events,
          .join_nodes = options.join_nodes,
          .exports_l2 = options.storage_exports_l2};
}

/// Owners of the pages of a pool: every taken page has exactly one.
class page_census {
public:
  explicit page_census(const page_allocator& pool)
    : pool_(pool), seen_(uint64_t{pool.capacity()} + 1) {}

  void add(std::span<const page_index> pages) {
    for (const auto page : pages) {
      HICACHE_CHECK(pool_.is_taken(page) && !seen_[page]);
      seen_[page] = true;
      ++count_;
    }
  }

  /// True if no page is lost.
  bool is_complete() const { return count_ + pool_.held_back() + pool_.free() == pool_.capacity(); }

private:
  const page_allocator& pool_;
  std::vector<bool> seen_;
  uint64_t count_ = 0;
};

} // namespace

prefix_cache::prefix_cache(const tree_options& options)
  : settings_{options}, tree_(radix_options_of(options)), backups_(tree_, settings_, effects_),
    copies_(tree_, backups_, settings_, effects_), pins_(tree_, copies_, settings_),
    handle_locks_(tree_), requests_(tree_, pins_, settings_),
    fetches_(tree_, requests_, settings_, effects_), sessions_(settings_) {
  HICACHE_CHECK(std::has_single_bit(options.page_size));
  HICACHE_CHECK(options.prefetch_reserve_pages <= options.l2_pages);
  HICACHE_CHECK(options.l1_pages < limits::pool_pages && options.l2_pages < limits::pool_pages);
  if (!options.share_prefixes)
    settings_.options.storage_attached = false;
  if (options.l2_pages > 0)
    tree_.set_save([this](radix_node& node,
                          std::vector<page_index> host) { copies_.write(node, std::move(host)); },
                   [this](const radix_node& node) {
                     // L2 nodes below it would be lost with it; and what L3 has was used before.
                     return settings_.options.write != write_policy::write_through_selective
                            || node.use().hits >= settings_.least_hits() || node.l2_children() > 0
                            || node.l3() == l3_state::stored;
                   });
  fetches_.fill_staging();
}

// -- operations without a request ---------------------------------------------

result<evict_result> prefix_cache::evict(const evict_request& asked) {
  const auto size = settings_.options.page_size;
  const auto pages = asked.tokens / size + (asked.tokens % size > 0 ? 1 : 0);
  if (asked.tier == cache_tier::l2)
    return evict_result{tokens(tree_.evict_l2(pages)), 0};
  const auto pending_write_backs = tree_.pending_write_backs();
  const auto freed = tree_.evict_l1(pages);
  return evict_result{tokens(freed), tokens(tree_.pending_write_backs() - pending_write_backs)};
}

result<pin_result> prefix_cache::pin(const pin_request& asked) {
  if (!asked.tokens || asked.ttl.count() <= 0)
    return fail(ec::invalid_argument, "a pin needs tokens and a time above zero");
  auto* root = tree_.find_root(asked.ns);
  if (root == nullptr)
    return pin_result{};
  const auto end = tree_.walk(*root, *asked.tokens, tree_.whole_pages(asked.tokens->size()));
  if (end.node->is_root())
    return pin_result{};
  if (!pins_.fits_budget(end)) {
    const auto wanted = tokens(open_pins::unpinned_pages(end));
    return fail(ec::limit_reached, "pinning " + std::to_string(wanted)
                                     + " more tokens would exceed the tenant's budget of "
                                     + std::to_string(tokens(settings_.options.pin_budget_pages))
                                     + " tokens");
  }
  pins_.begin(tree_.cut(end), asked.ttl);
  return pin_result{tokens(end.pages)};
}

result<pin_result> prefix_cache::unpin(const unpin_request& asked) {
  auto* root = tree_.find_root(asked.ns);
  if (root == nullptr || !asked.tokens)
    return pin_result{};
  const auto end = tree_.walk(*root, *asked.tokens, tree_.whole_pages(asked.tokens->size()));
  pins_.end_within(end);
  auto still = uint64_t{0};
  for (const auto* node = end.node; !node->is_root(); node = node->parent())
    still += node->pins() > 0 ? std::min(node->end(), end.pages) - node->first() : 0;
  return pin_result{tokens(still)};
}

result<session_result> prefix_cache::open_session(const open_session_request& asked) {
  return sessions_.open(asked).map([](uint64_t generation) { return session_result{generation}; });
}

result<session_result> prefix_cache::close_session(const close_session_request& asked) {
  const auto found = HICACHE_TRY(sessions_.find_idle(asked.session));
  const auto& session = *found;
  if (session.kept)
    give_up_slot(session);
  if (session.reference != 0)
    tree_.drop_reference(session.reference);
  sessions_.close(session);
  return session_result{asked.session.generation};
}

result<void> prefix_cache::clear() {
  // Closes the slots of sessions, but only if nothing else prevents the clear.
  const auto is_idle = !sessions_.has_turns() && requests_.size() == sessions_.slots()
                       && handle_locks_.count() == 0 && !in_flight()
                       && backups_.quarantined_pages() == 0;
  for (const auto& [generation, session] : sessions_.list())
    if (is_idle && session.kept)
      give_up_slot(session);
  if (!requests_.empty() || handle_locks_.count() > 0)
    return fail(ec::invalid_argument, "requests are open or nodes locked, so nothing was cleared");
  if (copies_.in_flight() || !backups_.empty() || !fetches_.empty())
    return fail(ec::invalid_argument, "copies are in flight, so nothing was cleared");
  pins_.end_all();
  tree_.tick();
  tree_.clear();
  settings_.is_stopped = false;
  return {};
}

// -- operations on a node -----------------------------------------------------

lock_result prefix_cache::lock_sizes() const {
  return {tokens(tree_.totals().l1_evictable), tokens(tree_.totals().l1_protected)};
}

result<backup_result> prefix_cache::backup(node_id id) {
  auto* const end = HICACHE_TRY(find_node(tree_, id));
  auto missing = uint64_t{0};
  for (const auto* node = end; !node->is_root(); node = node->parent())
    missing += node->l2_pages().empty() ? node->pages() : 0;
  tree_.lock_l2(*end);
  const auto available = tree_.l2_available();
  tree_.unlock_l2(*end);
  if (missing > available)
    return fail(ec::out_of_host_pages, "node " + std::to_string(id) + " needs "
                                         + std::to_string(missing) + " more pages of L2");
  return backup_result{tokens(copies_.write_path(*end, 0, true))};
}

result<load_node_result> prefix_cache::load_node(const load_node_request& asked) {
  auto* const end = HICACHE_TRY(find_node(tree_, asked.node));
  auto& l1_end = end->l1_end();
  const auto count = end->end() - l1_end.end();
  if (count == 0 || tokens(count) < settings_.options.load_back_threshold_tokens
      || tokens(count) > asked.quota_tokens || settings_.is_stopped)
    return load_node_result{};
  // Neither part of the path may be evicted for the other.
  tree_.lock_l1(l1_end);
  tree_.lock_l2(*end);
  auto pages = tree_.take_l1(count);
  if (pages)
    copies_.load(*end, std::move(*pages));
  tree_.unlock_l2(*end);
  tree_.unlock_l1(l1_end);
  if (!pages && tree_.pending_write_backs() > 0)
    return tl::unexpected{no_l1_pages("node " + std::to_string(asked.node), count)};
  return load_node_result{pages ? tokens(count) : 0};
}

result<uint64_t> prefix_cache::refer(node_id id) {
  auto* const node = HICACHE_TRY(find_node(tree_, id));
  return tree_.refer(*node);
}

// -- steps --------------------------------------------------------------------

bool prefix_cache::in_flight() const noexcept {
  return copies_.in_flight() || backups_.in_flight() || !fetches_.empty() || pins_.is_waiting();
}

std::vector<ready_request> prefix_cache::step(const step_facts& facts,
                                              std::span<const page_list> arrived) {
  fetches_.check_facts(facts, arrived);
  const auto backup_facts = backups_.name(facts.backups);
  settings_.now_ns = std::max(settings_.now_ns, facts.now_ns);
  if (facts.loss_age_ns != step_facts::no_loss)
    settings_.lost_ns = std::max(settings_.lost_ns, settings_.now_ns - facts.loss_age_ns);
  pins_.advance();
  lost_.clear();
  failed_.clear();
  copies_.finish_writes(facts.writes_done, facts.write_failed);
  copies_.finish_loads(facts.loads_done, facts.load_failed,
                       [this](radix_node& top) { discard(top); });
  backups_.finish(backup_facts);
  auto ready = fetches_.finish(facts, arrived);
  fetches_.expire_fetches();
  copies_.stage();
  evict_in_background();
  tree_.join_nodes();
  for (auto& each : ready)
    if (const auto* session = sessions_.find_inner(each.request); session != nullptr) {
      sessions_.forget_insert(each, *session);
      each.request = *session->turn;
    }
  for (const auto request : lost_)
    lose(request);
  std::ranges::sort(failed_);
  return ready;
}

/// Takes a node and everything below it out of the cache, because a load of its pages failed.
void prefix_cache::discard(radix_node& top) {
  pins_.end_below(top);
  const auto valid_pages = top.first();
  tree_.discard(top);
  lost_ = requests_.lose_discarded(valid_pages);
}

/// A request lost cached pages. Between two turns of a session the loss is not reported.
void prefix_cache::lose(request_id request) {
  const auto* session = sessions_.find_inner(request);
  if (session == nullptr)
    return failed_.push_back(request);
  if (!session->turn)
    return give_up_slot(*session);
  sessions_.change(*session)->kept->has_failed = true;
  failed_.push_back(*session->turn);
}

/// Evicts ahead of requests if L1 is below its watermark.
void prefix_cache::evict_in_background() {
  const auto& room = settings_.options.l1_room;
  const auto free = tree_.l1_pool().free() + tree_.pending_write_backs();
  if (free < room.low_pages)
    tree_.evict_l1(room.high_pages - free);
}

// -- state --------------------------------------------------------------------

void prefix_cache::change_storage(const storage_change& change) {
  auto& options = settings_.options;
  if (!options.share_prefixes)
    return; // Nothing is shared, so nothing is stored.
  switch (change.what) {
    case storage_change::action::attach:
      ++settings_.storage_epoch;
      options.storage_attached = true;
      options.storage_backend = change.backend;
      options.prefetch = change.prefetch;
      tree_.set_exports_l2(change.exports_l2);
      fetches_.keep_staging();
      fetches_.fill_staging();
      return;
    case storage_change::action::detach:
      options.storage_attached = false;
      fetches_.terminate_all();
      backups_.drop_all();
      copies_.forget_staging();
      // The next store may not have these pages.
      for (auto* node : tree_.sorted_nodes())
        if (node->l3() == l3_state::stored)
          node_edit{tree_, *node}.end_backup(l3_state::unknown);
      tree_.set_exports_l2(false);
      return;
    case storage_change::action::release:
      fetches_.release_staging();
      return;
  }
}

uint64_t prefix_cache::digest() const noexcept {
  const auto inner = settings_.options.share_prefixes ? shared_digest() : unshared_digest();
  const auto [sessions, last_generation, session_count] = sessions_.digest();
  return mix(mix(inner, sessions), mix(last_generation, session_count));
}

// The order of the words, including zeros of former fields, is fixed by recorded op logs.

uint64_t prefix_cache::unshared_digest() const noexcept {
  const auto [request_count, requests] = requests_.digest();
  return mix(mix(requests, request_count), mix(tree_.l1_pool().digest(), 0));
}

uint64_t prefix_cache::shared_digest() const noexcept {
  const auto [writes_issued, writes_done, loads_issued, loads_done, unstaged] = copies_.digest();
  const auto [backups_issued, backup_count, backup_pages, quarantined] = backups_.digest();
  const auto [fetches_issued, reserve, fetches, deadlines] = fetches_.digest();
  const auto [request_count, requests] = requests_.digest();
  const auto [pins, pin_count] = pins_.digest();
  const auto storage = uint64_t{tree_.options().exports_l2} << 2
                       | uint64_t{settings_.options.storage_attached} << 1
                       | uint64_t{fetches_.is_released()};
  const auto state = std::array<uint64_t, 24>{tree_.digest(),
                                              writes_issued,
                                              writes_done,
                                              loads_issued,
                                              loads_done,
                                              backups_issued,
                                              backup_count,
                                              backup_pages,
                                              fetches_issued,
                                              reserve,
                                              request_count,
                                              requests,
                                              fetches,
                                              storage,
                                              settings_.storage_epoch,
                                              deadlines,
                                              uint64_t{settings_.is_stopped},
                                              static_cast<uint64_t>(settings_.lost_ns),
                                              pins,
                                              pin_count,
                                              handle_locks_.count(),
                                              static_cast<uint64_t>(settings_.now_ns),
                                              unstaged,
                                              quarantined};
  return XXH3_64bits(state.data(), sizeof(state));
}

tree_stats prefix_cache::stats() const noexcept {
  const auto l2_free = tree_.l2_pool().free();
  return {.nodes = tree_.node_count(),
          .l1_free = tree_.l1_pool().free(),
          .l1_evictable = tree_.totals().l1_evictable,
          .l1_protected = tree_.totals().l1_protected,
          .l2_free = l2_free,
          .l2_used = tree_.l2_pool().capacity() - l2_free,
          .evicted_l1 = tree_.evicted_l1(),
          .evicted_l2 = tree_.evicted_l2(),
          .quarantined = backups_.quarantined_pages(),
          .pinned = pins_.pages(),
          .requests_open = requests_.size()};
}

std::vector<node_view> prefix_cache::nodes() const {
  auto list = std::vector<node_view>{};
  const auto sorted = tree_.sorted_nodes();
  auto children = std::map<node_id, std::vector<const radix_node*>>{};
  for (const auto* node : sorted)
    if (!node->is_root() && !node->is_discarded())
      children[node->parent()->id()].push_back(node);
  auto open = std::vector<const radix_node*>{};
  for (auto node = sorted.rbegin(); node != sorted.rend(); ++node)
    if ((*node)->is_root())
      open.push_back(*node);
  while (!open.empty()) {
    const auto& node = *open.back();
    open.pop_back();
    const auto& below = children[node.id()];
    open.insert(open.end(), below.rbegin(), below.rend());
    if (node.is_root())
      continue;
    const auto tokens = node.tokens().view();
    list.push_back({.id = node.id(),
                    .parent = node.parent()->is_root() ? 0 : node.parent()->id(),
                    .ns = node.ns(),
                    .tokens = {tokens.begin(), tokens.end()},
                    .in_l1 = node.in_l1(),
                    .in_l2 = node.l2_resident(),
                    .in_storage = node.l3() == l3_state::stored,
                    .l1_locks = node.l1_locks(),
                    .l2_locks = node.l2_locks(),
                    .pins = node.pins(),
                    .use = node.use()});
  }
  return list;
}

// -- checks -------------------------------------------------------------------

void prefix_cache::check_locks() const {
  auto census = lock_census{};
  backups_.count_locks(census);
  copies_.count_locks(census);
  pins_.count_locks(census);
  handle_locks_.count_locks(census);
  requests_.count_locks(census);
  for (const auto* node : tree_.sorted_nodes()) {
    HICACHE_CHECK(node->l1_locks() == census.l1_locks(*node));
    HICACHE_CHECK(node->l2_locks() == census.l2_locks(*node));
    HICACHE_CHECK(node->backup() == 0 || backups_.is_open(node->backup()));
  }
}

void prefix_cache::check_pages() const {
  auto device = page_census{tree_.l1_pool()};
  auto host = page_census{tree_.l2_pool()};
  for (const auto* node : tree_.sorted_nodes()) {
    device.add(node->l1_pages());
    host.add(node->l2_pages());
  }
  requests_.visit([&](const open_request& request) { device.add(request.owned); });
  host.add(fetches_.reserved());
  HICACHE_CHECK(device.is_complete() && host.is_complete());
}

void prefix_cache::check_invariants() const {
  tree_.check_invariants();
  backups_.check_invariants();
  copies_.check_invariants();
  pins_.check_invariants();
  requests_.check_invariants();
  fetches_.check_invariants();
  sessions_.check_invariants();
  for (const auto& [generation, session] : sessions_.list())
    HICACHE_CHECK(!session.kept || requests_.contains(session.inner()));
  check_locks();
  check_pages();
}

// -- any operation ------------------------------------------------------------

tree_answer apply(prefix_cache& cache, const tree_operation& operation) {
  return std::visit<tree_answer>(
    overloaded{
      [&](const match_request& x) { return cache.match(x); },
      [&](const prefetch_request& x) { return cache.prefetch(x.request); },
      [&](const schedule_request& x) { return cache.schedule(x.request); },
      [&](const load_request& x) { return cache.load_back(x); },
      [&](const allocate_request& x) { return cache.allocate(x); },
      [&](const insert_request& x) { return cache.insert(x); },
      [&](const release_request& x) {
        auto provenance = cache.provenance(x.request);
        return cache.release(x.request).map([&] { return release_result{std::move(*provenance)}; });
      },
      [&](const evict_request& x) { return cache.evict(x); },
      [&](const pin_request& x) { return cache.pin(x); },
      [&](const unpin_request& x) { return cache.unpin(x); },
      [&](const open_session_request& x) { return cache.open_session(x); },
      [&](const close_session_request& x) { return cache.close_session(x); },
      [&](const lock_request& x) { return cache.lock(x.node); },
      [&](const unlock_request& x) { return cache.unlock(x.node); },
      [&](const write_request& x) { return cache.backup(x.node); },
      [&](const load_node_request& x) { return cache.load_node(x); },
      [&](const clear_request&) { return cache.clear().map([] { return clear_result{}; }); },
    },
    operation);
}

} // namespace hicache
