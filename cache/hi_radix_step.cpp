// Steps: what all ranks agreed on becomes a fact.

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"
#include "cache/hi_radix_impl.hpp"

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
  advance(facts.now_ns);
  while (writes.done < facts.writes_done)
    finish_write(writes.finish_oldest());
  while (loads.done < facts.loads_done)
    finish_load(loads.finish_oldest());
  finish_backups(facts.backups);
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
  back_up_path(*write.end);
  tree.unlock_host(*write.end);
  // L3 takes no page before its parent, so a page that is written back takes those above it along.
  if (!leaving.empty())
    want_staged(*write.end);
}

void hi_radix_tree::impl::finish_load(const operation_queue::entry& load) {
  for (auto* node :
       path_nodes(*load.end, [&](const radix_node& node) { return node.load == load.id; }))
    tree.finish_load(*node);
  tree.unlock_device(*load.end);
  tree.unlock_host(*load.end);
}

void hi_radix_tree::impl::make_room() {
  const auto& device = options.device_room;
  const auto device_free = tree.device_pool().free() + tree.leaving();
  if (device_free < device.low_pages)
    tree.evict_device(device.high_pages - device_free);
}

// -- state --------------------------------------------------------------------

uint64_t hi_radix_tree::impl::digest() const noexcept {
  const auto storage_flags = uint64_t{options.storage_attached} << 1 | uint64_t{is_released};
  const auto fetching_digest = mix(fetches_digest, open_fetches.empty() ? 0 : open_fetches.front());
  const auto state
    = std::array<uint64_t, 23>{tree.digest(),        writes.issued,
                               writes.done,          loads.issued,
                               loads.done,           backups_issued,
                               backups.size(),       backup_pages,
                               fetches_issued,       reserve,
                               requests.size(),      requests_digest,
                               fetching_digest,      storage_flags,
                               storage_epoch,        stop_times.size() + untimed.size(),
                               uint64_t{is_stopped}, damage,
                               pins_digest,          pins.size(),
                               handle_locks_count,   static_cast<uint64_t>(now_ns),
                               unstaged.size()};
  return XXH3_64bits(state.data(), sizeof(state));
}

} // namespace hicache
