// What holds pages without a request: locks by handle, pins; and what frees them: evict, clear.

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"
#include "cache/prefix/hi_radix_impl.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace hicache {

uint64_t pin_digest(node_id end, const open_pin& pin) noexcept {
  return mix(mix(end, static_cast<uint64_t>(pin.ttl_ns)),
             mix(static_cast<uint64_t>(pin.expiry_ns), static_cast<uint64_t>(pin.asked_ttl_ns)));
}

// -- locks by handle ----------------------------------------------------------

lock_result hi_radix_tree::impl::lock_sizes() const {
  return {tokens(tree.totals().device_evictable), tokens(tree.totals().device_protected)};
}

result<lock_result> hi_radix_tree::impl::lock(node_id id) {
  auto* node = tree.find(id);
  if (node == nullptr)
    return fail(ec::unknown_id, "node " + std::to_string(id) + " is not in the tree (any more)");
  if (handle_locks_count >= limits::handle_locks)
    return fail(ec::limit_reached, "too many locks are held by node");
  auto& device_end = node->device_end();
  auto held = handle_lock{&device_end, nullptr};
  tree.lock_device(device_end);
  if (&device_end != node) {
    tree.lock_host(*node);
    held.host_end = node;
  }
  handle_locks[id].push_back(held);
  ++handle_locks_count;
  return lock_sizes();
}

result<lock_result> hi_radix_tree::impl::unlock(node_id id) {
  const auto entry = handle_locks.find(id);
  if (entry == handle_locks.end())
    return fail(ec::unknown_id, "node " + std::to_string(id) + " is not locked");
  const auto held = entry->second.front();
  entry->second.pop_front();
  if (entry->second.empty())
    handle_locks.erase(entry);
  --handle_locks_count;
  if (held.host_end != nullptr)
    tree.unlock_host(*held.host_end);
  tree.unlock_device(*held.device_end);
  return lock_sizes();
}

result<uint64_t> hi_radix_tree::impl::refer(node_id id) {
  auto* node = tree.find(id);
  if (node == nullptr)
    return fail(ec::unknown_id, "node " + std::to_string(id) + " is not in the tree (any more)");
  return tree.refer(*node);
}

// -- pins ---------------------------------------------------------------------

uint64_t hi_radix_tree::impl::unpinned_pages(const path_end& end) {
  auto count = end.node->pins == 0 && !end.node->is_root() ? end.pages - end.node->first : 0;
  for (const auto* node = end.node->parent; node != nullptr; node = node->parent)
    count += node->pins == 0 ? node->pages : 0;
  return count;
}

bool hi_radix_tree::impl::fits_budget(const path_end& end) const {
  const auto used = pinned_pages.find(end.node->root().ns->salt);
  return (used == pinned_pages.end() ? 0 : used->second) + unpinned_pages(end)
         <= options.pin_budget_pages;
}

result<pin_result> hi_radix_tree::impl::pin(const pin_request& asked) {
  if (!asked.tokens || asked.ttl.count() <= 0)
    return fail(ec::invalid_argument, "a pin needs tokens and a time above zero");
  auto* root = tree.find_root(asked.ns);
  if (root == nullptr)
    return pin_result{};
  const auto end = tree.walk(*root, *asked.tokens, tree.whole_pages(asked.tokens->size()));
  if (end.node->is_root())
    return pin_result{};
  if (!fits_budget(end))
    return fail(ec::limit_reached, "pinning " + std::to_string(tokens(unpinned_pages(end)))
                                     + " more tokens would exceed the tenant's budget of "
                                     + std::to_string(tokens(options.pin_budget_pages))
                                     + " tokens");
  begin_pin(tree.cut(end), asked.ttl);
  return pin_result{tokens(end.pages)};
}

/// The time is known at steps only, so that is when a pin's time begins.
void hi_radix_tree::impl::begin_pin(radix_node& end, std::chrono::nanoseconds ttl) {
  const auto [entry, is_new] = pins.try_emplace(end.id, open_pin{.end = &end});
  auto& pin = entry->second;
  if (is_new) {
    pinned_pages[end.root().ns->salt] += unpinned_pages({&end, end.end()});
    tree.pin(end);
  } else {
    pins_digest -= pin_digest(end.id, pin);
  }
  if (pin.asked_ttl_ns == 0)
    asked_pins.push_back(end.id);
  pin.asked_ttl_ns = std::max<int64_t>(pin.asked_ttl_ns, ttl.count());
  pin.ttl_ns = std::max(pin.ttl_ns, pin.asked_ttl_ns);
  pins_digest += pin_digest(end.id, pin);
  if (options.write != write_policy::write_back)
    write_path(end, least_hits(), false);
}

void hi_radix_tree::impl::refresh_pins(const radix_node& end) {
  if (!options.pin_refresh || is_stopped)
    return;
  // Counts of pins grow towards the root.
  for (const auto* node = &end; !node->is_root(); node = node->parent)
    if (node->pins > 0)
      if (const auto pin = pins.find(node->id); pin != pins.end())
        begin_pin(*pin->second.end, std::chrono::nanoseconds{pin->second.ttl_ns});
}

void hi_radix_tree::impl::end_pin(node_id id) {
  const auto entry = pins.find(id);
  const auto pin = entry->second;
  if (pin.is_timed)
    expiries.erase({pin.expiry_ns, id});
  if (pin.asked_ttl_ns != 0)
    std::erase(asked_pins, id);
  pins_digest -= pin_digest(id, pin);
  pins.erase(entry);
  const auto used = pinned_pages.find(pin.end->root().ns->salt);
  for (const auto* node = pin.end; !node->is_root(); node = node->parent)
    used->second -= node->pins == 1 ? node->pages : 0;
  if (used->second == 0)
    pinned_pages.erase(used);
  tree.unpin(*pin.end);
}

pin_result hi_radix_tree::impl::unpin(const unpin_request& asked) {
  auto* root = tree.find_root(asked.ns);
  if (root == nullptr || !asked.tokens)
    return {};
  const auto end = tree.walk(*root, *asked.tokens, tree.whole_pages(asked.tokens->size()));
  auto ended = std::vector<node_id>{};
  for (const auto* node = end.node; !node->is_root(); node = node->parent)
    if (node->end() <= end.pages && pins.contains(node->id))
      ended.push_back(node->id);
  auto still = uint64_t{0};
  for (const auto id : ended)
    end_pin(id);
  for (const auto* node = end.node; !node->is_root(); node = node->parent)
    still += node->pins > 0 ? std::min(node->end(), end.pages) - node->first : 0;
  return {tokens(still)};
}

void hi_radix_tree::impl::advance(int64_t now) {
  now_ns = std::max(now_ns, now);
  for (const auto id : std::exchange(asked_pins, {})) {
    auto& pin = pins.at(id);
    const auto expiry = now_ns + std::min(pin.asked_ttl_ns, INT64_MAX - now_ns);
    if (pin.is_timed)
      expiries.erase({pin.expiry_ns, id});
    pins_digest -= pin_digest(id, pin);
    pin.expiry_ns = pin.is_timed ? std::max(pin.expiry_ns, expiry) : expiry;
    pin.is_timed = true;
    pin.asked_ttl_ns = 0;
    pins_digest += pin_digest(id, pin);
    expiries.emplace(pin.expiry_ns, id);
  }
  while (!expiries.empty() && expiries.begin()->first <= now_ns)
    end_pin(expiries.begin()->second);
}

// -- room ---------------------------------------------------------------------

evict_result hi_radix_tree::impl::evict(const evict_request& asked) {
  const auto size = options.page_size;
  const auto pages = asked.tokens / size + (asked.tokens % size > 0 ? 1 : 0);
  if (asked.tier == cache_tier::host)
    return {tokens(tree.evict_host(pages)), 0};
  const auto leaving = tree.leaving();
  const auto freed = tree.evict_device(pages);
  return {tokens(freed), tokens(tree.leaving() - leaving)};
}

result<void> hi_radix_tree::impl::clear() {
  if (!requests.empty() || handle_locks_count > 0)
    return fail(ec::invalid_argument, "requests are open or nodes locked, so nothing was cleared");
  if (!writes.in_flight.empty() || !loads.in_flight.empty() || !backups.empty() || !fetches.empty())
    return fail(ec::invalid_argument, "copies are in flight, so nothing was cleared");
  while (!pins.empty())
    end_pin(pins.begin()->first);
  tree.tick();
  tree.clear();
  is_stopped = false;
  return {};
}

} // namespace hicache
