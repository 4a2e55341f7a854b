// hi_radix_tree, the handle: everything goes to its impl.

#include "base/limits.hpp"
#include "cache/prefix/hi_radix_impl.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

hi_radix_tree::hi_radix_tree(const tree_options& options) : impl_(std::make_unique<impl>(options)) {
  // nop
}

hi_radix_tree::~hi_radix_tree() = default;

hi_radix_tree::hi_radix_tree(hi_radix_tree&&) noexcept = default;

hi_radix_tree& hi_radix_tree::operator=(hi_radix_tree&&) noexcept = default;

// -- operations ---------------------------------------------------------------

result<match_result> hi_radix_tree::match(const match_request& request) {
  return impl_->match(request);
}

result<prefetch_result> hi_radix_tree::prefetch(request_id request) {
  return impl_->prefetch(request);
}

result<schedule_result> hi_radix_tree::schedule(request_id request) {
  return impl_->schedule(request);
}

result<load_result> hi_radix_tree::load_back(const load_request& request) {
  return impl_->load_back(request);
}

result<allocate_result> hi_radix_tree::allocate(const allocate_request& request) {
  return impl_->allocate(request);
}

result<insert_result> hi_radix_tree::insert(const insert_request& request) {
  return impl_->insert(request);
}

result<void> hi_radix_tree::release(request_id request) {
  return impl_->release(request);
}

page_list hi_radix_tree::pages_of(request_id request) const {
  const auto entry = impl_->requests.find(request);
  return entry == impl_->requests.end() ? nullptr : entry->second.pages;
}

result<request_provenance> hi_radix_tree::provenance(request_id request) const {
  return impl_->find(request).map(
    [this](const open_request* found) { return impl_->provenance(*found); });
}

result<evict_result> hi_radix_tree::evict(const evict_request& request) {
  return impl_->evict(request);
}

result<pin_result> hi_radix_tree::pin(const pin_request& request) {
  return impl_->pin(request);
}

result<pin_result> hi_radix_tree::unpin(const unpin_request& request) {
  return impl_->unpin(request);
}

result<session_result> hi_radix_tree::open_session(const open_session_request&) {
  return fail(ec::unsupported, "this cache has no sessions");
}

result<session_result> hi_radix_tree::close_session(const close_session_request&) {
  return fail(ec::unsupported, "this cache has no sessions");
}

result<lock_result> hi_radix_tree::lock(node_id node) {
  return impl_->lock(node);
}

result<lock_result> hi_radix_tree::unlock(node_id node) {
  return impl_->unlock(node);
}

result<backup_result> hi_radix_tree::backup(node_id node) {
  return impl_->backup(node);
}

result<load_node_result> hi_radix_tree::load_node(const load_node_request& request) {
  return impl_->load_node(request);
}

result<uint64_t> hi_radix_tree::refer(node_id node) {
  return impl_->refer(node);
}

void hi_radix_tree::drop_reference(uint64_t reference) {
  impl_->tree.drop_reference(reference);
}

result<void> hi_radix_tree::clear() {
  return impl_->clear();
}

// -- steps --------------------------------------------------------------------

bool hi_radix_tree::in_flight() const noexcept {
  const auto pending = [](const operation_queue& queue) { return !queue.in_flight.empty(); };
  return pending(impl_->writes) || pending(impl_->loads)
         || impl_->backups.size() > impl_->held_backups || !impl_->fetches.empty()
         || !impl_->asked_pins.empty();
}

std::span<const operation_id> hi_radix_tree::backing_up() const noexcept {
  const auto& open = impl_->open_backups;
  return std::span{open}.first(std::min(open.size(), limits::step_backups));
}

std::span<const fetch_id> hi_radix_tree::fetching() const noexcept {
  const auto& open = impl_->open_fetches;
  return std::span{open}.first(std::min(open.size(), limits::step_fetches));
}

std::span<const fetch_id> hi_radix_tree::fetching_later() const noexcept {
  return std::span{impl_->open_fetches}.subspan(fetching().size());
}

bool hi_radix_tree::has_pins() const noexcept {
  return !impl_->pins.empty();
}

std::optional<int64_t> hi_radix_tree::next_stop_ns() const noexcept {
  const auto& times = impl_->stop_times;
  return times.empty() ? std::nullopt : std::optional{times.begin()->first};
}

std::vector<ready_request> hi_radix_tree::step(const step_facts& facts,
                                               std::span<const page_list> arrived) {
  return impl_->step(facts, arrived);
}

std::span<const request_id> hi_radix_tree::failed() const noexcept {
  return impl_->failed;
}

std::vector<tree_effect> hi_radix_tree::take_effects() {
  return std::exchange(impl_->effects, {});
}

std::vector<cache_event> hi_radix_tree::take_events() {
  return impl_->tree.events().take();
}

// -- state --------------------------------------------------------------------

void hi_radix_tree::change_storage(const storage_change& change) {
  impl_->change_storage(change);
}

void hi_radix_tree::stop_serving() noexcept {
  impl_->is_stopped = true;
}

uint64_t hi_radix_tree::digest() const noexcept {
  return impl_->digest();
}

tree_stats hi_radix_tree::stats() const noexcept {
  const auto& tree = impl_->tree;
  const auto host_free = tree.host_pool().free();
  auto pinned = uint64_t{0};
  for (const auto& [tenant, pages] : impl_->pinned_pages)
    pinned += pages;
  return {.nodes = tree.node_count(),
          .device_free = tree.device_pool().free(),
          .device_evictable = tree.totals().device_evictable,
          .device_protected = tree.totals().device_protected,
          .host_free = host_free,
          .host_used = tree.host_pool().capacity() - host_free,
          .evicted_device = tree.evicted_device(),
          .evicted_host = tree.evicted_host(),
          .quarantined = impl_->quarantined,
          .pinned = pinned,
          .requests_open = impl_->requests.size()};
}

std::vector<node_view> hi_radix_tree::nodes() const {
  auto list = std::vector<node_view>{};
  const auto sorted = impl_->tree.sorted_nodes();
  auto children = std::map<node_id, std::vector<const radix_node*>>{};
  for (const auto* node : sorted)
    if (!node->is_root() && !node->is_discarded)
      children[node->parent->id].push_back(node);
  auto open = std::vector<const radix_node*>{};
  for (auto node = sorted.rbegin(); node != sorted.rend(); ++node)
    if ((*node)->is_root())
      open.push_back(*node);
  while (!open.empty()) {
    const auto& node = *open.back();
    open.pop_back();
    const auto& below = children[node.id];
    open.insert(open.end(), below.rbegin(), below.rend());
    if (node.is_root())
      continue;
    const auto tokens = node.tokens.view();
    list.push_back({.id = node.id,
                    .parent = node.parent->is_root() ? 0 : node.parent->id,
                    .ns = *node.root().ns,
                    .tokens = {tokens.begin(), tokens.end()},
                    .on_device = node.on_device(),
                    .on_host = node.host_resident(),
                    .in_storage = node.l3 == l3_state::stored,
                    .device_locks = node.device_locks,
                    .host_locks = node.host_locks,
                    .pins = node.pins,
                    .use = node.use});
  }
  return list;
}

void hi_radix_tree::check_invariants() const {
  impl_->check_invariants();
}

} // namespace hicache
