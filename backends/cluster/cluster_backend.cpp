#include "backends/cluster/cluster_backend.hpp"

#include "backends/ask.hpp"
#include "backends/cluster/publication.hpp"
#include "backends/cluster/segment_memory.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/page_checksum.hpp"
#include "messages/placement.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace hicache {

namespace {

std::vector<page_key> keys_at(const auto& pages, std::span<const size_t> positions) {
  auto keys = std::vector<page_key>{};
  for (const auto i : positions)
    keys.push_back(pages[i].key);
  return keys;
}

/// The replicas of each page that a look-up found; none without one.
std::vector<replica_list> places_of(std::span<const page_read> pages) {
  auto where = std::vector<replica_list>(pages.size());
  for (auto i = size_t{0}; i < pages.size(); ++i)
    if (const auto& place = pages[i].place; place.answer)
      where[i] = static_cast<const placements*>(place.answer.get())->replicas[place.position];
  return where;
}

} // namespace

cluster_backend::cluster_backend(cluster_options options)
  : options_(std::move(options)), reader_(options_.reader),
    lookup_(*options_.reader.system, *options_.reader.index, *options_.reader.clock) {
  HICACHE_CHECK(options_.replicas > 0 && options_.figures != nullptr);
}

// -- blocking_store -----------------------------------------------------------

std::vector<bool> cluster_backend::exists(std::span<const page_key> keys, time_point deadline) {
  const auto where = lookup_.locate(keys, deadline).where; // Unanswered keys count as misses.
  auto found = std::vector<bool>(keys.size());
  for (auto i = size_t{0}; i < keys.size(); ++i)
    found[i] = !where.replicas[i].empty();
  return found;
}

std::vector<result<store_place>> cluster_backend::lookup(std::span<const page_key> keys,
                                                         time_point deadline) {
  const auto where = std::make_shared<const placements>(lookup_.locate(keys, deadline).where);
  auto places = std::vector<result<store_place>>(keys.size(), fail(ec::not_found));
  for (auto i = size_t{0}; i < keys.size(); ++i)
    if (!where->replicas[i].empty())
      places[i] = store_place{where, static_cast<uint32_t>(i)};
  return places;
}

std::vector<result<void>> cluster_backend::get(std::span<const page_read> pages,
                                               time_point deadline) {
  const auto& clock = *options_.reader.clock;
  if (clock.now() >= deadline)
    return std::vector<result<void>>(pages.size(), fail(ec::deadline_exceeded));
  auto outcome = std::vector<result<void>>(pages.size(), fail(ec::not_found));
  auto open = std::vector<size_t>(pages.size());
  std::iota(open.begin(), open.end(), size_t{0});
  auto where = places_of(pages);
  static_cast<void>(get_from(where, pages, open, false, deadline, outcome));
  std::erase_if(open, [&outcome](size_t i) { return outcome[i].has_value(); });
  const auto until = std::min(deadline, clock.now() + limits::demand_wait);
  for (auto insists = false; !open.empty() && clock.now() < deadline;) {
    const auto found = lookup_.locate(keys_at(pages, open), deadline).where.replicas;
    for (auto k = size_t{0}; k < open.size(); ++k)
      where[open[k]] = found[k];
    open = get_from(where, pages, open, insists, deadline, outcome);
    if (insists)
      break;
    auto known = std::vector<replica_list>{};
    for (const auto i : open)
      known.push_back(where[i]);
    insists = !lookup_.await_more(keys_at(pages, open), known, until);
  }
  auto counted = backend_counters{};
  for (const auto& page : outcome)
    counted.count_get(page);
  options_.figures->hits += counted.hits;
  options_.figures->misses += counted.misses;
  options_.figures->errors += counted.errors + counted.corrupt;
  const auto guard = std::lock_guard{mutex_};
  counters_ += counted;
  return outcome;
}

std::vector<size_t> cluster_backend::get_from(std::span<const replica_list> where,
                                              std::span<const page_read> pages,
                                              std::span<const size_t> positions, bool insists,
                                              time_point deadline,
                                              std::vector<result<void>>& outcome) {
  auto wanted = std::vector<page_search>{};
  auto known = std::vector<size_t>{};
  for (const auto i : positions) {
    const auto& page = pages[i];
    const auto& replicas = where[i];
    if (replicas.empty()) {
      // Keep the earlier error, which says more, unless it was the request to wait.
      if (auto& end = outcome[i]; end.error().code == ec::limit_reached)
        end = fail(ec::not_found);
      continue;
    }
    // The number of replicas is at its maximum.
    const auto is_everywhere = replicas.size() >= limits::replicas_per_key;
    wanted.push_back(
      {page.key, options_.fingerprint, replicas, page.parts, insists || is_everywhere});
    known.push_back(i);
  }
  auto uses = member_pages{};
  auto refused = std::vector<size_t>{};
  auto hot = std::vector<size_t>{};
  const auto found = reader_.read(wanted, deadline);
  for (auto k = size_t{0}; k < known.size(); ++k) {
    auto& end = outcome[known[k]];
    if (found[k]) {
      end = {};
      uses[found[k]->member].push_back(wanted[k].key);
      if (found[k]->in_demand)
        hot.push_back(known[k]);
    } else {
      end = tl::unexpected{found[k].error()};
      if (end.error().code == ec::limit_reached)
        refused.push_back(known[k]);
    }
  }
  reader_.tell_uses(std::move(uses));
  if (options_.segment && !hot.empty())
    offer(pages, hot, deadline);
  return refused;
}

void cluster_backend::offer(std::span<const page_read> pages, std::span<const size_t> positions,
                            time_point deadline) {
  auto wanted = segment_pages{};
  for (const auto i : positions)
    wanted.list.push_back({pages[i].key,
                           {},
                           static_cast<uint32_t>(total_bytes(pages[i].parts)),
                           options_.fingerprint,
                           0});
  // No timeout: the slots of an unreceived answer would leak.
  auto slots = ask<segment_slots>(*options_.reader.system, options_.segment, caf::infinite,
                                  atom::reserve_v, std::move(wanted));
  if (!slots)
    return;
  for (auto k = size_t{0}; k < positions.size(); ++k)
    if (const auto& parts = pages[positions[k]].parts;
        slots->list[k].what == segment_slot::state::reserved)
      write(slots->list[k], std::vector<std::span<const std::byte>>{parts.begin(), parts.end()});
  std::erase_if(slots->list, [](const auto& x) { return x.what != segment_slot::state::reserved; });
  // Waits until the index knows, as for any stored page; a failure costs only a replica.
  static_cast<void>(ask<key_batch>(*options_.reader.system, options_.segment,
                                   time_left(*options_.reader.clock, deadline), atom::publish_v,
                                   std::move(*slots)));
}

// -- a put --------------------------------------------------------------------

std::vector<result<void>> cluster_backend::set(std::span<const page_write> pages,
                                               time_point deadline) {
  if (options_.reader.clock->now() >= deadline)
    return std::vector<result<void>>(pages.size(), fail(ec::deadline_exceeded));
  auto outcome = std::vector<result<void>>(pages.size());
  auto self = caf::scoped_actor{*options_.reader.system};
  const auto slots = reserve(self, pages);
  if (slots)
    write_and_publish(self, pages, *slots, deadline, outcome);
  else
    std::ranges::fill(outcome, tl::unexpected{slots.error()});
  const auto guard = std::lock_guard{mutex_};
  for (const auto& page : outcome)
    counters_.count_set(page);
  return outcome;
}

result<std::vector<segment_slot>> cluster_backend::reserve(caf::scoped_actor& self,
                                                           std::span<const page_write> pages) {
  auto slots = result<std::vector<segment_slot>>{std::vector<segment_slot>(pages.size())};
  if (!options_.segment)
    return slots;
  auto wanted = segment_pages{};
  auto copied = std::vector<size_t>{};
  for (auto i = size_t{0}; i < pages.size(); ++i) {
    const auto& page = pages[i];
    if (const auto object
        = options_.exported ? options_.exported->find_object(page.parts) : std::nullopt) {
      (*slots)[i].what = options_.exported->is_exported(*object, page.key)
                           ? segment_slot::state::present
                           : segment_slot::state::exported;
      continue;
    }
    copied.push_back(i);
    wanted.list.push_back({page.key, page.parent, static_cast<uint32_t>(total_bytes(page.parts)),
                           options_.fingerprint, page.tenant,
                           static_cast<uint8_t>(options_.replicas)});
  }
  if (copied.empty())
    return slots;
  // No timeout: the slots of an unreceived answer would leak.
  self->request(options_.segment, caf::infinite, atom::reserve_v, std::move(wanted))
    .receive(
      [&](const segment_slots& found) {
        for (auto k = size_t{0}; k < copied.size(); ++k)
          (*slots)[copied[k]] = found.list[k];
      },
      [&](const caf::error& err) { slots = tl::unexpected{from_caf(err)}; });
  return slots;
}

void cluster_backend::write_and_publish(caf::scoped_actor& self, std::span<const page_write> pages,
                                        const std::vector<segment_slot>& slots, time_point deadline,
                                        std::vector<result<void>>& outcome) {
  auto news = publication{
    self,
    {options_.segment, options_.reader.member, options_.fingerprint, options_.replicas,
     [this, deadline](const page_key& first) { return replica_targets(first, deadline); },
     options_.reader.clock, deadline}};
  auto unwritten = segment_slots{};
  auto without_room = std::vector<size_t>{};
  for (auto i = size_t{0}; i < pages.size(); ++i) {
    const auto& page = pages[i];
    auto slot = slots[i];
    const auto is_reserved = slot.what == segment_slot::state::reserved;
    if (is_reserved && options_.reader.clock->now() >= deadline) {
      unwritten.list.push_back(slot);
      outcome[i] = fail(ec::deadline_exceeded);
      continue;
    }
    if (is_reserved)
      write(slot, page.parts);
    else if (slot.what == segment_slot::state::exported)
      // If revoked meanwhile, the object is about to be overwritten and must not be copied either.
      slot = options_.exported->export_page(page.parts, page.key, options_.fingerprint)
               .value_or(segment_slot{page.key});
    if (slot.what == segment_slot::state::full)
      without_room.push_back(i);
    else if (slot.what != segment_slot::state::present)
      news.add(i, page, slot);
  }
  if (!unwritten.list.empty())
    self->send(options_.segment, atom::abort_v, std::move(unwritten));
  news.send();
  fail_unless_elsewhere(pages, without_room, deadline, outcome);
  news.finish(outcome);
}

void cluster_backend::write(const segment_slot& slot,
                            std::span<const std::span<const std::byte>> parts) {
  const auto checksum = gather_object(parts, object_of(options_.segment_memory, slot));
  seal_slot(options_.segment_memory, slot, options_.fingerprint, checksum);
}

void cluster_backend::fail_unless_elsewhere(std::span<const page_write> pages,
                                            std::span<const size_t> positions, time_point deadline,
                                            std::vector<result<void>>& outcome) {
  if (positions.empty())
    return;
  const auto keys = keys_at(pages, positions);
  const auto where = lookup_.locate(keys, deadline).where;
  for (auto k = size_t{0}; k < keys.size(); ++k)
    if (where.replicas[k].empty())
      outcome[positions[k]]
        = fail(ec::store_full, options_.segment ? "" : "this process exports no memory");
}

std::vector<member_actor> cluster_backend::replica_targets(const page_key& first,
                                                           time_point deadline) {
  const auto choose = [&](const std::vector<member_info>& members) {
    return place_replicas(first, members, options_.host, options_.replicas - size_t{1});
  };
  auto chosen = choose(reader_.recent_members(deadline));
  if (chosen.size() + 1 < options_.replicas) // A host may have joined just now.
    chosen = choose(reader_.members(deadline));
  auto targets = std::vector<member_actor>{};
  for (const auto member : chosen)
    if (const auto known = reader_.find(member, deadline))
      targets.push_back(known->actor);
  return targets;
}

std::vector<result<void>> cluster_backend::remove(std::span<const page_key> keys,
                                                  time_point deadline) {
  if (options_.reader.clock->now() >= deadline)
    return std::vector<result<void>>(keys.size(), fail(ec::deadline_exceeded));
  if (!options_.segment) // Only owners remove pages, and without a segment this process owns none.
    return std::vector<result<void>>(keys.size());
  const auto gone = ask<atom::ok>(
    *options_.reader.system, options_.segment, time_left(*options_.reader.clock, deadline),
    atom::remove_v, std::make_shared<const std::vector<page_key>>(keys.begin(), keys.end()));
  return std::vector<result<void>>(keys.size(), gone.map([](atom::ok) {}));
}

backend_health cluster_backend::health() {
  auto health = backend_health{};
  const auto view = options_.reader.index->view();
  health.ok = view->serves_all();
  if (!view->is_whole())
    health.detail = view->numbers.empty() ? "the index cannot be reached"
                    : health.ok ? "a shard of the index cannot be reached; others answer for it"
                                : "a shard of the index cannot be reached";
  health.capacity_bytes = options_.segment_memory.size();
  health.objects = options_.figures->pages;
  health.bytes = options_.figures->used_bytes;
  const auto guard = std::lock_guard{mutex_};
  health.counters = counters_;
  health.counters.evicted = options_.figures->evicted;
  return health;
}

} // namespace hicache
