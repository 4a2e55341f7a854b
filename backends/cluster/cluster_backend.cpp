#include "backends/cluster/cluster_backend.hpp"

#include "backends/ask.hpp"
#include "backends/cluster/segment_memory.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/page_checksum.hpp"
#include "messages/placement.hpp"

#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>

namespace hicache {

namespace {

std::vector<page_key> keys_at(std::span<const page_read> pages, std::span<const size_t> positions) {
  auto keys = std::vector<page_key>{};
  for (const auto i : positions)
    keys.push_back(pages[i].key);
  return keys;
}

template <class T>
std::vector<result<void>> all_fail(const T& pages, ec code, const char* detail = "") {
  return std::vector<result<void>>(pages.size(), fail(code, detail));
}

} // namespace

cluster_backend::cluster_backend(cluster_options options)
  : options_(std::move(options)), reader_(options_.reader),
    lookup_(*options_.reader.system, *options_.reader.index, *options_.reader.clock) {
  HICACHE_CHECK(options_.replicas > 0 && options_.figures != nullptr);
}

cluster_backend::~cluster_backend() = default;

// -- blocking_store -----------------------------------------------------------

std::vector<bool> cluster_backend::exists(std::span<const page_key> keys, time_point deadline) {
  const auto where = locate(keys, deadline);
  auto found = std::vector<bool>(keys.size());
  for (auto i = size_t{0}; i < keys.size(); ++i)
    found[i] = !where.replicas[i].empty();
  return found;
}

std::vector<result<void>> cluster_backend::get(std::span<const page_read> pages,
                                               time_point deadline) {
  if (options_.reader.clock->now() >= deadline)
    return all_fail(pages, ec::deadline_exceeded);
  auto outcome = all_fail(pages, ec::not_found);
  auto open = std::vector<size_t>(pages.size());
  std::iota(open.begin(), open.end(), size_t{0});
  // A reader has usually just looked the pages up.
  static_cast<void>(get_from(recall(keys_at(pages, open)), pages, open, false, deadline, outcome));
  std::erase_if(open, [&outcome](size_t i) { return outcome[i].has_value(); });
  const auto is_in_time = [&] { return options_.reader.clock->now() < deadline; };
  for (auto look = 0; !open.empty() && look <= limits::demand_looks && is_in_time(); ++look) {
    if (look > 0)
      std::this_thread::sleep_for(limits::demand_pause);
    open = get_from(locate(keys_at(pages, open), deadline), pages, open,
                    look == limits::demand_looks, deadline, outcome);
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

std::vector<size_t> cluster_backend::get_from(const placements& where,
                                              std::span<const page_read> pages,
                                              std::span<const size_t> positions, bool insists,
                                              time_point deadline,
                                              std::vector<result<void>>& outcome) {
  auto wanted = std::vector<page_search>{};
  auto known = std::vector<size_t>{};
  for (auto k = size_t{0}; k < positions.size(); ++k) {
    const auto& page = pages[positions[k]];
    const auto& replicas = where.replicas[k];
    if (replicas.empty()) {
      // Keep the earlier error, which says more, unless it was the request to wait.
      if (auto& end = outcome[positions[k]]; end.error().code == ec::limit_reached)
        end = fail(ec::not_found);
      continue;
    }
    // The number of replicas is at its maximum.
    const auto is_everywhere = replicas.size() >= limits::replicas_per_key;
    wanted.push_back(
      {page.key, options_.fingerprint, replicas, page.parts, insists || is_everywhere});
    known.push_back(positions[k]);
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
  auto slots = write_slots(std::move(wanted), [&](size_t k) {
    const auto& parts = pages[positions[k]].parts;
    return std::vector<std::span<const std::byte>>{parts.begin(), parts.end()};
  });
  if (!slots)
    return;
  std::erase_if(slots->list, [](const auto& x) { return x.what != segment_slot::state::reserved; });
  // Waits until the index knows, as for any stored page; a failure costs only a replica.
  static_cast<void>(ask<key_batch>(*options_.reader.system, options_.segment,
                                   time_left(*options_.reader.clock, deadline), atom::publish_v,
                                   std::move(*slots)));
}

template <class PartsOf>
result<segment_slots> cluster_backend::write_slots(segment_pages pages, PartsOf parts_of) {
  // No timeout: the slots of an unreceived answer would leak.
  auto slots = ask<segment_slots>(*options_.reader.system, options_.segment, caf::infinite,
                                  atom::reserve_v, std::move(pages));
  if (!slots)
    return slots;
  for (auto k = size_t{0}; k < slots->list.size(); ++k) {
    const auto& slot = slots->list[k];
    if (slot.what != segment_slot::state::reserved)
      continue;
    const auto checksum = gather_object(parts_of(k), object_of(options_.segment_memory, slot));
    seal_slot(options_.segment_memory, slot, options_.fingerprint, checksum);
  }
  return slots;
}

std::vector<result<void>> cluster_backend::set(std::span<const page_write> pages,
                                               time_point deadline) {
  if (options_.reader.clock->now() >= deadline)
    return all_fail(pages, ec::deadline_exceeded);
  auto outcome = std::vector<result<void>>(pages.size());
  auto keys = std::vector<page_key>{};
  for (const auto& page : pages)
    keys.push_back(page.key);
  const auto known = locate(keys, deadline);
  auto positions = std::vector<size_t>{};
  auto used = key_batch{};
  for (auto i = size_t{0}; i < pages.size(); ++i)
    if (is_stored(pages[i], known.replicas[i]))
      used.keys.push_back(pages[i].key);
    else
      positions.push_back(i);
  if (options_.segment && !used.keys.empty())
    caf::anon_send(options_.segment, atom::touch_v, std::move(used));
  if (positions.empty())
    return outcome;
  const auto fail_rest = [&](const error& why) {
    for (const auto i : positions)
      outcome[i] = tl::unexpected{why};
    const auto guard = std::lock_guard{mutex_};
    counters_.errors += positions.size();
    return outcome;
  };
  if (!options_.segment)
    return fail_rest({ec::store_full, "this process exports no memory"});
  const auto slots = place(pages, positions);
  if (!slots)
    return fail_rest(slots.error());
  auto filled = segment_slots{};
  auto copies = page_copies{options_.reader.member, {}};
  for (auto k = size_t{0}; k < positions.size(); ++k) {
    const auto& page = pages[positions[k]];
    const auto& slot = slots->list[k];
    if (slot.what == segment_slot::state::full) {
      outcome[positions[k]] = fail(ec::store_full);
    } else if (slot.what != segment_slot::state::present) {
      filled.list.push_back(slot);
      const auto here = announced_page{slot.key, slot.offset, slot.generation, slot.length};
      auto& copy = copies.pages.emplace_back(
        copied_page{here, page.parent, options_.fingerprint, page.tenant});
      copy.copies = static_cast<uint8_t>(options_.replicas);
    }
  }
  if (filled.list.empty())
    return outcome;
  const auto published = ask<key_batch>(*options_.reader.system, options_.segment,
                                        time_left(*options_.reader.clock, deadline),
                                        atom::publish_v, std::move(filled));
  if (!published)
    return fail_rest(published.error());
  // The index refused pages that have enough replicas elsewhere.
  std::erase_if(copies.pages, [&gone = published->keys](const copied_page& x) {
    return std::ranges::find(gone, x.page.key) != gone.end();
  });
  if (options_.replicas > 1 && !copies.pages.empty())
    replicate(copies, deadline);
  return outcome;
}

bool cluster_backend::is_stored(const page_write& page, std::span<const replica> replicas) const {
  const auto& exported = options_.exported;
  return std::ranges::any_of(replicas, [&](const replica& x) {
    if (x.member != options_.reader.member || !exported || x.offset < exported->objects().headers)
      return true; // Another member or our segment has it.
    // A replica in another object of our L2 may be overwritten before this one.
    const auto object = exported->find_object(page.parts);
    return object && exported->header_of(*object) == x.offset
           && exported->is_exported(
             {page.key, segment_slot::state::exported, x.offset, x.generation, x.length});
  });
}

result<segment_slots> cluster_backend::place(std::span<const page_write> pages,
                                             std::span<const size_t> positions) {
  auto slots = segment_slots{};
  auto wanted = segment_pages{};
  auto copied = std::vector<size_t>{};
  for (const auto i : positions) {
    const auto& page = pages[i];
    auto& slot = slots.list.emplace_back();
    if (options_.exported && options_.exported->find_object(page.parts)) {
      // If revoked meanwhile, the object is about to be overwritten and must not be copied either.
      slot = options_.exported->export_page(page.parts, page.key, options_.fingerprint)
               .value_or(segment_slot{page.key});
      continue;
    }
    copied.push_back(slots.list.size() - 1);
    wanted.list.push_back({page.key, page.parent, static_cast<uint32_t>(total_bytes(page.parts)),
                           options_.fingerprint, page.tenant,
                           static_cast<uint8_t>(options_.replicas)});
  }
  if (copied.empty())
    return slots;
  const auto written = write_slots(
    std::move(wanted), [&](size_t k) -> const auto& { return pages[positions[copied[k]]].parts; });
  if (!written)
    return tl::unexpected{written.error()};
  for (auto k = size_t{0}; k < copied.size(); ++k)
    slots.list[copied[k]] = written->list[k];
  return slots;
}

std::vector<result<void>> cluster_backend::remove(std::span<const page_key> keys,
                                                  time_point deadline) {
  if (options_.reader.clock->now() >= deadline)
    return all_fail(keys, ec::deadline_exceeded);
  if (!options_.segment) // Only owners remove pages, and without a segment this process owns none.
    return std::vector<result<void>>(keys.size());
  auto gone = ask<atom::ok>(
    *options_.reader.system, options_.segment, time_left(*options_.reader.clock, deadline),
    atom::remove_v, std::make_shared<const std::vector<page_key>>(keys.begin(), keys.end()));
  if (!gone)
    return std::vector<result<void>>(keys.size(), tl::unexpected{gone.error()});
  return std::vector<result<void>>(keys.size());
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

// -- placements ---------------------------------------------------------------

placements cluster_backend::locate(std::span<const page_key> keys, time_point deadline) {
  auto all = lookup_.locate(keys, deadline).where; // Unanswered keys count as misses.
  auto latest
    = recent_placements::answer{keys, all, options_.reader.clock->now() + limits::placement_memory};
  const auto guard = std::lock_guard{mutex_};
  recent_.enter(std::move(latest));
  return all;
}

placements cluster_backend::recall(std::span<const page_key> keys) {
  const auto guard = std::lock_guard{mutex_};
  return recent_.recall(keys, options_.reader.clock->now());
}

// -- replicas -----------------------------------------------------------------

void cluster_backend::replicate(const page_copies& pages, time_point deadline) {
  // Chosen by the first page, so that the pages of a prefix stay together.
  const auto choose = [&](const std::vector<member_info>& members) {
    return place_replicas(pages.pages.front().page.key, members, options_.host,
                          options_.replicas - size_t{1});
  };
  auto targets = choose(reader_.recent_members(deadline));
  if (targets.size() + 1 < options_.replicas) // A host may have joined just now.
    targets = choose(reader_.members(deadline));
  const auto left = time_left(*options_.reader.clock, deadline);
  auto self = caf::scoped_actor{*options_.reader.system};
  auto copied = uint64_t{0};
  auto waiting = std::vector<std::function<void()>>{};
  for (const auto target : targets) {
    const auto member = reader_.find(target, deadline);
    if (!member)
      continue;
    for (auto first = size_t{0}; first < pages.pages.size(); first += limits::storage_batch_pages) {
      const auto count = std::min(limits::storage_batch_pages, pages.pages.size() - first);
      const auto begin = pages.pages.begin() + static_cast<ptrdiff_t>(first);
      auto part = page_copies{pages.source, {begin, begin + static_cast<ptrdiff_t>(count)}};
      waiting.emplace_back([&copied, answer = self->request(member->actor, left, atom::copy_v,
                                                            std::move(part))]() mutable {
        answer.receive([&](const page_totals& done) { copied += done.pages; },
                       [](const caf::error&) {});
      });
    }
  }
  for (const auto& receive : waiting)
    receive();
  if (const auto wanted = pages.pages.size() * (options_.replicas - 1); copied < wanted)
    spdlog::warn("{} of {} copies of pages for other hosts are missing", wanted - copied, wanted);
}

} // namespace hicache
