// Steps: what all ranks agreed on becomes a fact.

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"
#include "cache/prefix/hi_radix_impl.hpp"

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
  HICACHE_CHECK(is_possible(writes, facts.writes_done) && is_possible(loads, facts.loads_done));
  HICACHE_CHECK(facts.backups.size() == std::min(open_backups.size(), limits::step_backups)
                && facts.fetches.size() == std::min(open_fetches.size(), limits::step_fetches)
                && arrived.size() == facts.fetches.size());
  HICACHE_CHECK(
    facts.next_fetch == step_facts::no_fetch
    || (facts.next_fetch >= 0
        && static_cast<uint64_t>(facts.next_fetch) < open_fetches.size() - facts.fetches.size()));
  HICACHE_CHECK((!facts.write_failed || facts.writes_done > writes.done)
                && (!facts.load_failed || facts.loads_done > loads.done));
  const auto backup_facts = name_backups(facts.backups);
  advance(facts.now_ns);
  failed.clear();
  while (writes.done < facts.writes_done) {
    const auto write = writes.finish_oldest();
    if (facts.write_failed && writes.done == facts.writes_done)
      fail_write(write);
    else
      finish_write(write);
  }
  while (loads.done < facts.loads_done) {
    const auto load = loads.finish_oldest();
    if (facts.load_failed && loads.done == facts.loads_done)
      fail_load(load);
    else
      finish_load(load);
  }
  finish_backups(backup_facts);
  auto ready = std::vector<ready_request>{};
  finish_fetches(facts, arrived, ready);
  stop_overdue();
  stage();
  make_room();
  return ready;
}

// -- copies -------------------------------------------------------------------

void hi_radix_tree::impl::finish_write(const operation_queue::entry& write) {
  // Root first, as routers want to hear of pages; but leaves leave first.
  auto leaving = std::vector<radix_node*>{};
  for (auto* node :
       path_nodes(*write.end, [&](const radix_node& each) { return each.write == write.id; })) {
    tree.finish_write(*node);
    writing_pages -= node->pages;
    if (node->is_leaving)
      leaving.push_back(node);
  }
  tree.unlock_device(*write.end);
  for (auto i = leaving.rbegin(); i != leaving.rend(); ++i)
    tree.leave(**i);
  auto* end = write.end;
  while (end->is_discarded)
    end = end->parent;
  back_up_path(*end);
  tree.unlock_host(*write.end);
  // L3 takes no page before its parent, so a page that is written back takes those above it along.
  if (!leaving.empty())
    want_staged(*write.end);
}

void hi_radix_tree::impl::fail_write(const operation_queue::entry& write) {
  auto leaving = std::vector<radix_node*>{};
  for (auto* node = write.end; !node->is_root(); node = node->parent) {
    if (node->write != write.id)
      continue;
    tree.cancel_write(*node);
    writing_pages -= node->pages;
    if (node->is_leaving)
      leaving.push_back(node);
  }
  tree.unlock_device(*write.end);
  tree.unlock_host(*write.end);
  // Else a device that cannot write would never have room again.
  for (auto* node : leaving)
    tree.leave_unsaved(*node);
}

void hi_radix_tree::impl::finish_load(const operation_queue::entry& load) {
  // Root first, as routers want to hear of pages.
  auto waiting = std::vector<radix_node*>{};
  for (auto* node :
       path_nodes(*load.end, [&](const radix_node& each) { return each.load == load.id; })) {
    tree.finish_load(*node);
    if (!node->is_discarded)
      node->children.visit([&](const first_page&, radix_node& child) {
        if (child.l3 == l3_state::unknown && child.on_device() && child.host_resident())
          waiting.push_back(&child);
      });
  }
  // What was computed from these pages and is in L2 by now has waited to go to L3. The order of a
  // visit is not defined.
  std::ranges::sort(waiting, {}, &radix_node::id);
  for (auto* child : waiting)
    back_up_path(*child);
  tree.unlock_device(*load.end);
  tree.unlock_host(*load.end);
}

void hi_radix_tree::impl::fail_load(const operation_queue::entry& load) {
  auto* top = static_cast<radix_node*>(nullptr);
  for (auto* node = load.end; !node->is_root(); node = node->parent)
    if (node->load == load.id)
      top = node;
  if (!top->is_discarded)
    discard(*top);
  for (auto* node = load.end; node != top->parent; node = node->parent)
    tree.finish_load(*node);
  tree.unlock_device(*load.end);
  tree.unlock_host(*load.end);
}

void hi_radix_tree::impl::discard(radix_node& top) {
  auto pinned = std::vector<node_id>{};
  for (const auto& [id, pin] : pins)
    for (const auto* node = pin.end; !node->is_root(); node = node->parent)
      if (node == &top)
        pinned.push_back(id);
  for (const auto id : pinned)
    end_pin(id);
  const auto valid_pages = top.first;
  tree.discard(top);
  for (auto& [id, request] : requests) {
    before_change(request);
    if (request.host_end != nullptr && request.host_end->is_discarded) {
      request.known_pages = std::max(request.known_pages, request.matched_pages());
      request.why = std::min(request.why, give_up::copy_failed);
      drop_host_part(request);
    }
    if (request.device_end->is_discarded && !request.has_failed()) {
      request.known_pages = std::max(request.known_pages, request.device_pages);
      request.why = std::min(request.why, give_up::copy_failed);
      request.valid_pages = valid_pages;
      failed.push_back(id);
    }
    after_change(request);
  }
  std::ranges::sort(failed);
}

void hi_radix_tree::impl::make_room() {
  const auto& device = options.device_room;
  const auto device_free = tree.device_pool().free() + tree.leaving();
  if (device_free < device.low_pages)
    tree.evict_device(device.high_pages - device_free);
}

// -- state --------------------------------------------------------------------

uint64_t hi_radix_tree::impl::digest() const noexcept {
  const auto storage_flags = uint64_t{tree.options().lends_host} << 2
                             | uint64_t{options.storage_attached} << 1 | uint64_t{is_released};
  const auto fetching_digest = mix(fetches_digest, open_fetches.empty() ? 0 : open_fetches.front());
  // The 0 counted something once; recorded op logs have it.
  const auto state
    = std::array<uint64_t, 24>{tree.digest(),        writes.issued,
                               writes.done,          loads.issued,
                               loads.done,           backups_issued,
                               backups.size(),       backup_pages,
                               fetches_issued,       reserve,
                               requests.size(),      requests_digest,
                               fetching_digest,      storage_flags,
                               storage_epoch,        stop_times.size() + untimed.size(),
                               uint64_t{is_stopped}, 0,
                               pins_digest,          pins.size(),
                               handle_locks_count,   static_cast<uint64_t>(now_ns),
                               unstaged.size(),      quarantined};
  return XXH3_64bits(state.data(), sizeof(state));
}

} // namespace hicache
