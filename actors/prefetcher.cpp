#include "actors/prefetcher.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "cache/hash/page_names.hpp"
#include "hicache/storage_backend.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

size_t tier_of(const storage_hit& hit, uint64_t page) {
  return hit.tiers ? (*hit.tiers)[page] : 0;
}

/// A lookup without its first pages.
storage_hit part_of(const storage_hit& hit, uint64_t first) {
  auto part = storage_hit{.pages = hit.pages - first, .names = hit.names};
  if (hit.places) {
    const auto per_page = hit.places->size() / hit.pages;
    part.places = std::make_shared<const std::vector<store_place>>(
      hit.places->begin() + static_cast<ptrdiff_t>(first * per_page), hit.places->end());
  }
  if (hit.tiers)
    part.tiers = std::make_shared<const tier_list>(
      hit.tiers->begin() + static_cast<ptrdiff_t>(first), hit.tiers->end());
  return part;
}

} // namespace

// -- request handling ---------------------------------------------------------

void prefetcher_state::fetch(const fetch_command& command) {
  const auto id = command.id;
  const auto [entry, is_new] = fetches.try_emplace(id);
  HICACHE_CHECK(is_new);
  auto& fetch = entry->second;
  fetch.command = command;
  fetch.tree = caf::actor_cast<tree_core_actor>(self->current_sender());
  if (peers_lost) {
    fetch.reads.stop(miss_reason::failed);
    answer(id, fetch);
    fetches.erase(entry);
    return;
  }
  hits.issue(id);
  if (!storage)
    return terminate(id);
  look_up(command);
  // The lookup goes on, to be measured. Behind a probe it could take long.
  if (options.when == prefetch_rule::faster
      && (is_probing()
          || !estimates.is_lookup_worth(command.names->size(), command.page_compute_time)))
    decline(id, fetch, miss_reason::faster_to_compute);
}

void prefetcher_state::look_up(const fetch_command& command) {
  const auto pages = command.names->size();
  auto measure = [this, pages, asked = now()] { estimates.add_lookup(pages, now() - asked); };
  auto on_found = [this, command, measure](const storage_hit& hit) {
    estimates.set_tiers(hit.names);
    measure();
    on_hit(command, hit);
  };
  auto on_error = [this, command, measure](const caf::error& err) {
    const auto why = from_caf(err);
    if (is_failed_read(why.code)) {
      spdlog::warn("the store did not say which pages it has: {}", to_string(why));
      ++counters.storage_failures;
    }
    if (why.code == ec::deadline_exceeded)
      measure();
    if (const auto i = fetches.find(command.id); i != fetches.end())
      i->second.reads.stop(reason_of(why.code));
    on_hit(command, {});
  };
  ++queries_in_flight;
  self
    ->request(storage, caf::infinite, atom::exists_v,
              storage_batch{.names = command.names, .count = pages}, options.timeout)
    .then(std::move(on_found), std::move(on_error));
}

void prefetcher_state::terminate(fetch_id id) {
  const auto i = fetches.find(id);
  if (i != fetches.end() && !i->second.reads.is_ended())
    decline(id, i->second, miss_reason::stopped);
}

void prefetcher_state::fill_staging(const staging_command& command) {
  reserve.insert(reserve.end(), command.l2_pages->begin(), command.l2_pages->end());
}

caf::result<atom::ok> prefetcher_state::drain() {
  auto promise = self->make_response_promise<atom::ok>();
  draining.push_back(promise);
  end_drain();
  return promise;
}

void prefetcher_state::attach(const storage_actor& store) {
  storage = store;
  estimates.forget();
  next_probe = {};
}

rank_counters prefetcher_state::count() const {
  auto all = counters;
  const auto& traffic = options.traffic;
  all.load_ns = static_cast<uint64_t>(
    estimates.slowest(uint64_t{traffic.batch_pages} * traffic.batches_in_flight).count());
  return all;
}

// -- internal steps -----------------------------------------------------------

bool prefetcher_state::is_probing() const {
  return !fetches.empty() && fetches.rbegin()->first > UINT64_MAX - probes;
}

void prefetcher_state::on_hit(const fetch_command& command, const storage_hit& hit) {
  --queries_in_flight;
  const auto choice = estimates.choose(hit.pages, hit.tiers.get(), command.page_compute_time);
  const auto wanted = options.when == prefetch_rule::always ? hit.pages : choice.pages;
  if (const auto i = fetches.find(command.id); i != fetches.end()) {
    i->second.hit = hit;
    offer(command.id, i->second,
          {static_cast<int64_t>(hit.pages), static_cast<int64_t>(wanted), choice.load.count(),
           choice.compute.count()});
  }
  if (wanted < hit.pages)
    probe(command, hit, wanted);
  forget_if_done(fetches.find(command.id));
}

void prefetcher_state::decline(fetch_id id, open_fetch& fetch, miss_reason why) {
  fetch.reads.stop(why);
  answer(id, fetch);
  // Its length no longer matters, so later fetches need not wait for the store's reply.
  offer(id, fetch, {});
}

void prefetcher_state::offer(fetch_id id, open_fetch& fetch, const hit_length& length) {
  if (peers_lost || std::exchange(fetch.is_known, true))
    return;
  hits.known(id, length);
  agree();
}

void prefetcher_state::agree() {
  auto values = hits.next();
  if (!values)
    return;
  auto on_minimum = [this](const reduced& minimum) {
    ++counters.reductions;
    for (const auto& [id, length] : hits.agreed(minimum.values))
      begin(id, length);
    agree();
  };
  // Without its peers this rank can fetch nothing more; all pending fetches end empty.
  auto on_error = [this](const caf::error& err) {
    spdlog::error("the ranks cannot agree on hit lengths: {}", to_string(from_caf(err)));
    ++counters.errors;
    peers_lost = true;
    for (auto i = fetches.begin(); i != fetches.end();) {
      auto& fetch = i->second;
      if (!fetch.reads.is_ended()) {
        fetch.reads.stop(miss_reason::failed);
        answer(i->first, fetch);
      }
      fetch.is_agreed = true;
      forget_if_done(i++);
    }
  };
  self
    ->request(ranks, caf::infinite, atom::reduce_v,
              reduction{reduction_channel::prefetch, std::move(*values)})
    .then(on_minimum, on_error);
}

void prefetcher_state::begin(fetch_id id, const hit_length& agreed) {
  const auto i = fetches.find(id);
  HICACHE_CHECK(i != fetches.end());
  auto& fetch = i->second;
  fetch.is_agreed = true;
  if (!fetch.reads.is_ended()) {
    fetch.agreed = agreed;
    const auto least = static_cast<int64_t>(fetch.command.least);
    auto wanted = static_cast<uint64_t>(agreed.wanted < least ? 0 : agreed.wanted);
    if (agreed.found < least) {
      fetch.reads.stop(agreed.found > 0 ? miss_reason::too_short : miss_reason::none);
    } else if (agreed.wanted < agreed.found) {
      fetch.reads.stop(miss_reason::faster_to_compute);
      counters.declined_pages += static_cast<uint64_t>(agreed.found) - wanted;
    }
    if (reserve.size() < wanted) {
      wanted = reserve.size();
      fetch.reads.stop(miss_reason::no_room);
    }
    fetch.reads.begin(take_pages(wanted));
    fetch.timer.begin(now());
    read_more(id, fetch);
    if (fetch.reads.reads_in_flight() == 0)
      answer(id, fetch);
  }
  forget_if_done(i);
}

void prefetcher_state::probe(const fetch_command& command, const storage_hit& hit, uint64_t first) {
  const auto& traffic = options.traffic;
  const auto pages = std::min<uint64_t>(
    {hit.pages - first, reserve.size(), uint64_t{traffic.batch_pages} * traffic.batches_in_flight});
  if (pages == 0 || !storage || now() < next_probe)
    return;
  next_probe = now() + limits::load_probe_interval;
  const auto id = UINT64_MAX - probes++;
  auto& fetch = fetches[id];
  fetch.command = command;
  fetch.first = first;
  fetch.hit = part_of(hit, first);
  fetch.is_known = fetch.is_agreed = true;
  fetch.reads.begin(take_pages(pages));
  fetch.timer.begin(now());
  read_more(id, fetch);
  // All reads are in flight; what they bring returns to the staging pool.
  static_cast<void>(fetch.reads.end());
}

std::vector<page_index> prefetcher_state::take_pages(uint64_t count) {
  const auto from = reserve.end() - static_cast<ptrdiff_t>(count);
  auto pages = std::vector<page_index>(from, reserve.end());
  reserve.erase(from, reserve.end());
  return pages;
}

void prefetcher_state::read_more(fetch_id id, open_fetch& fetch) {
  const auto& command = fetch.command;
  while (const auto part = fetch.reads.next(options.traffic)) {
    auto batch = storage_batch{.names = command.names,
                               .first = fetch.first + part->first,
                               .count = part->count,
                               .l2_pages = fetch.reads.pages(),
                               .l2_first = part->first,
                               .tenant = command.tenant,
                               .places = fetch.hit.places,
                               .marks = fetch.reads.marks()};
    auto on_outcome
      = [this, id, part = *part](const storage_outcome& x) { finish_read(id, part, x); };
    auto on_error = [this, id, part = *part](const caf::error& err) {
      finish_read(id, part, {std::vector<ec>(part.count, from_caf(err).code)});
    };
    // No request timeout: the storage actor enforces the deadline and reports whether the store may
    // still write to the pages.
    self->request(storage, caf::infinite, atom::get_v, std::move(batch), options.timeout)
      .then(std::move(on_outcome), std::move(on_error));
  }
}

void prefetcher_state::finish_read(fetch_id id, const fetch_reads::part& part,
                                   const storage_outcome& outcome) {
  const auto i = fetches.find(id);
  HICACHE_CHECK(i != fetches.end());
  auto& fetch = i->second;
  // A page that is late took at least that long.
  for (auto k = size_t{0}; k < part.count; ++k)
    if (const auto code = outcome.pages[k]; code == ec::none || code == ec::deadline_exceeded)
      fetch.timer.add(tier_of(fetch.hit, part.first + k), 1, now());
  auto ends = fetch.reads.finish(part, outcome);
  counters.bytes_l3_to_l2 += ends.read * options.page_bytes;
  counters.storage_failures += ends.failures;
  reserve.insert(reserve.end(), ends.free.begin(), ends.free.end());
  if (outcome.ticket != 0)
    quarantine(outcome.ticket, std::move(ends.quarantined));
  read_more(id, fetch);
  if (fetch.reads.reads_in_flight() == 0 && !fetch.reads.is_ended())
    answer(id, fetch);
  forget_if_done(i);
}

void prefetcher_state::quarantine(uint64_t ticket, std::vector<page_index> pages) {
  quarantined += pages.size();
  auto on_returned = [this, pages = std::move(pages)](atom::ok) {
    quarantined -= pages.size();
    reserve.insert(reserve.end(), pages.begin(), pages.end());
    end_drain();
  };
  // If the storage is gone, the pages stay quarantined.
  self->request(storage, caf::infinite, atom::drain_v, ticket)
    .then(std::move(on_returned), [](const caf::error&) {});
}

void prefetcher_state::answer(fetch_id id, open_fetch& fetch) {
  auto ended = fetch.reads.end();
  counters.bytes_l3_to_l2 += ended.read * options.page_bytes;
  reserve.insert(reserve.end(), ended.free.begin(), ended.free.end());
  auto fetched = fetched_pages{.id = id,
                               .l2_pages = std::move(ended.arrived),
                               .found = static_cast<uint64_t>(fetch.agreed.found),
                               .why = fetch.reads.why(),
                               .tiers = fetch.hit.names,
                               .load_estimate = duration{fetch.agreed.load_ns},
                               .compute_estimate = duration{fetch.agreed.compute_ns}};
  if (fetched.tiers)
    for (auto page = size_t{0}; page < fetched.l2_pages->size(); ++page)
      ++fetched.by_tier[tier_of(fetch.hit, page)];
  self->send(fetch.tree, atom::fetched_v, std::move(fetched));
}

void prefetcher_state::forget_if_done(open_fetches::iterator entry) {
  if (entry != fetches.end()) {
    const auto& fetch = entry->second;
    if (!fetch.reads.is_ended() || !fetch.is_agreed || fetch.reads.reads_in_flight() > 0)
      return;
    fetch.timer.report(estimates);
    fetches.erase(entry);
  }
  end_drain();
}

void prefetcher_state::end_drain() {
  if (fetches.empty() && queries_in_flight == 0 && quarantined == 0)
    for (auto& promise : std::exchange(draining, {}))
      promise.deliver(atom::ok_v);
}

// -- actor --------------------------------------------------------------------

prefetcher_actor::behavior_type
prefetcher(prefetcher_actor::stateful_pointer<prefetcher_state> self, prefetcher_options options,
           storage_actor storage, rank_reduction_core_actor ranks) {
  HICACHE_CHECK(ranks);
  auto& state = self->state;
  state.options = options;
  state.storage = std::move(storage);
  state.ranks = std::move(ranks);
  state.estimates = load_estimates{options.page_bytes};
  return {
    [self](atom::fetch, const fetch_command& command) { self->state.fetch(command); },
    [self](atom::terminate, const terminate_command& command) {
      self->state.terminate(command.id);
    },
    [self](atom::stage, const staging_command& command) { self->state.fill_staging(command); },
    [self](atom::stage, const reclaim_command&) { self->state.reserve.clear(); },
    [self](atom::attach, const caf::strong_actor_ptr& store) {
      self->state.attach(caf::actor_cast<storage_actor>(store));
    },
    [self](atom::drain) { return self->state.drain(); },
    [self](atom::counters) { return self->state.count(); },
  };
}

} // namespace hicache
