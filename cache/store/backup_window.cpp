#include "cache/store/backup_window.hpp"

#include "base/check.hpp"

#include <algorithm>

namespace hicache {

void backup_window::enqueue(operation_id id, uint64_t pages) {
  HICACHE_CHECK(pages > 0 && find(id) == commands_.end());
  commands_.push_back({.id = id, .pages = pages});
}

void backup_window::drop(operation_id id) {
  const auto entry = find(id);
  if (entry == commands_.end() || entry->is_over)
    return;
  entry->is_over = entry->counts_as_dropped = true;
  settle(entry);
}

void backup_window::drop_all() {
  for (const auto& x : std::exchange(commands_, {})) {
    HICACHE_CHECK(x.in_flight == 0);
    ends_.push_back({x.id, x.stored});
  }
  is_pausing_ = false;
}

std::optional<backup_window::batch> backup_window::next(bool orders_writes) {
  if (is_pausing_ || in_flight_ >= traffic_.batches_in_flight)
    return std::nullopt;
  const auto may_send = [orders_writes](const command& x) {
    return !x.is_over && !x.has_failed && x.sent < x.pages && (x.in_flight == 0 || orders_writes);
  };
  const auto found = std::ranges::find_if(commands_, may_send);
  if (found == commands_.end())
    return std::nullopt;
  const auto count = std::min<uint64_t>(found->pages - found->sent, traffic_.batch_pages);
  const auto chosen = batch{found->id, found->sent, count};
  found->sent += count;
  ++found->in_flight;
  ++in_flight_;
  return chosen;
}

backup_window::verdict backup_window::finish(const batch& sent, const storage_outcome& outcome,
                                             bool is_late) {
  const auto entry = find(sent.id);
  HICACHE_CHECK(entry != commands_.end() && entry->in_flight > 0 && in_flight_ > 0);
  --in_flight_;
  if (is_late) {
    end_in_quarantine(*entry);
    return {};
  }
  --entry->in_flight;
  const auto failed = std::ranges::find_if(outcome.pages, [](ec code) { return code != ec::none; });
  const auto good = static_cast<uint64_t>(failed - outcome.pages.begin());
  HICACHE_CHECK(good <= sent.count && outcome.left_to_others <= good);
  written_ += good - outcome.left_to_others;
  if (good > 0)
    is_store_failing_ = false;
  if (!entry->has_failed)
    entry->early[sent.first] = {good, good == sent.count ? ec::none : *failed};
  const auto after = advance(*entry);
  settle(entry);
  return after;
}

void backup_window::returned(const batch& sent) {
  const auto entry = find(sent.id);
  HICACHE_CHECK(entry != commands_.end() && entry->in_flight > 0);
  --entry->in_flight;
  settle(entry);
}

void backup_window::resume(uint64_t pause) {
  if (is_pausing_ && pause == pauses_) {
    is_pausing_ = false;
    ++counters_.backup_retries;
  }
}

// -- internal steps -----------------------------------------------------------

backup_window::commands::iterator backup_window::find(operation_id id) {
  return std::ranges::find(commands_, id, &command::id);
}

backup_window::verdict backup_window::advance(command& x) {
  for (auto next_part = x.early.find(x.stored); next_part != x.early.end();
       next_part = x.early.find(x.stored)) {
    const auto [good, code] = next_part->second;
    x.early.erase(next_part);
    x.stored += good;
    if (good > 0)
      x.failures = 0;
    if (code == ec::none)
      continue;
    x.has_failed = true;
    x.early.clear();
    return x.is_over ? verdict{} : fail(x, code);
  }
  return {};
}

backup_window::verdict backup_window::fail(command& x, ec code) {
  if (code == ec::store_full || code == ec::store_unavailable) {
    x.is_over = true;
    // A full store is not a failure; the pages are just not stored.
    x.counts_as_dropped = code == ec::store_unavailable;
    return {};
  }
  ++counters_.storage_failures;
  ++x.failures;
  if (is_store_failing_ || x.failures >= traffic_.backup_attempts) {
    x.is_over = x.counts_as_dropped = true;
    const auto is_news = !std::exchange(is_store_failing_, true);
    return {std::nullopt, is_news ? std::optional{code} : std::nullopt};
  }
  is_pausing_ = true;
  ++pauses_;
  return {traffic_.backup_pause * (1 << (x.failures - 1)), std::nullopt};
}

void backup_window::end_in_quarantine(command& x) {
  ++counters_.storage_failures;
  if (std::exchange(x.is_in_quarantine, true))
    return;
  x.is_over = true;
  x.counts_as_dropped = false;
  counters_.dropped_backups += x.pages - x.stored;
  ends_.push_back({x.id, x.stored, true});
}

void backup_window::settle(const commands::iterator& entry) {
  auto& x = *entry;
  if (x.in_flight > 0)
    return;
  if (!x.is_over && x.stored < x.pages) {
    x.sent = x.stored;
    x.has_failed = false;
    return;
  }
  if (x.counts_as_dropped)
    counters_.dropped_backups += x.pages - x.stored;
  ends_.push_back({x.id, x.stored});
  commands_.erase(entry);
  // A pause ends with the last command that caused it.
  if (std::ranges::none_of(commands_, [](const command& each) { return each.failures > 0; }))
    is_pausing_ = false;
}

} // namespace hicache
