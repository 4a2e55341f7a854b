#include "actors/prefetcher.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "cache/hash/page_names.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace hicache {

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
  if (!storage) {
    terminate(id);
    return;
  }
  auto batch = storage_batch{.names = command.names, .count = command.names->size()};
  auto on_error = [this, id](const caf::error& err) {
    const auto why = from_caf(err);
    if (is_failed_read(why.code)) {
      spdlog::warn("the store did not say which pages it has: {}", to_string(why));
      ++counters.storage_failures;
    }
    if (const auto i = fetches.find(id); i != fetches.end())
      i->second.reads.stop(reason_of(why.code));
    on_hit(id, {});
  };
  ++queries_in_flight;
  self->request(storage, caf::infinite, atom::exists_v, std::move(batch), options.timeout)
    .then([this, id](const storage_hit& hit) { on_hit(id, hit); }, on_error);
}

void prefetcher_state::terminate(fetch_id id) {
  const auto i = fetches.find(id);
  if (i == fetches.end() || i->second.reads.is_ended())
    return;
  auto& fetch = i->second;
  fetch.reads.stop(miss_reason::stopped);
  answer(id, fetch);
  // Its length no longer matters, so later fetches need not wait for the store's reply.
  offer(id, fetch, 0);
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

// -- internal steps -----------------------------------------------------------

void prefetcher_state::on_hit(fetch_id id, const storage_hit& hit) {
  --queries_in_flight;
  const auto i = fetches.find(id);
  if (i != fetches.end()) {
    i->second.places = hit.places;
    offer(id, i->second, hit.pages);
  }
  forget_if_done(fetches.find(id));
}

void prefetcher_state::offer(fetch_id id, open_fetch& fetch, uint64_t pages) {
  if (peers_lost || std::exchange(fetch.is_known, true))
    return;
  hits.known(id, static_cast<int64_t>(pages));
  agree();
}

void prefetcher_state::agree() {
  auto values = hits.next();
  if (!values)
    return;
  auto on_minimum = [this](const reduced& minimum) {
    ++counters.reductions;
    for (const auto& [id, pages] : hits.agreed(minimum.values))
      begin(id, static_cast<uint64_t>(pages));
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

void prefetcher_state::begin(fetch_id id, uint64_t pages) {
  const auto i = fetches.find(id);
  HICACHE_CHECK(i != fetches.end());
  auto& fetch = i->second;
  fetch.is_agreed = true;
  if (!fetch.reads.is_ended()) {
    fetch.found = pages;
    auto wanted = std::min<uint64_t>(pages, reserve.size());
    if (wanted < pages)
      fetch.reads.stop(miss_reason::no_room);
    if (pages < fetch.command.least) {
      wanted = 0;
      fetch.reads.stop(pages > 0 ? miss_reason::too_short : miss_reason::none);
    }
    fetch.reads.begin({reserve.end() - static_cast<ptrdiff_t>(wanted), reserve.end()});
    reserve.resize(reserve.size() - wanted);
    read_more(id, fetch);
    if (fetch.reads.reads_in_flight() == 0)
      answer(id, fetch);
  }
  forget_if_done(i);
}

void prefetcher_state::read_more(fetch_id id, open_fetch& fetch) {
  const auto& command = fetch.command;
  while (const auto part = fetch.reads.next(options.traffic)) {
    auto batch = storage_batch{.names = command.names,
                               .first = part->first,
                               .count = part->count,
                               .l2_pages = fetch.reads.pages(),
                               .l2_first = part->first,
                               .tenant = command.tenant,
                               .places = fetch.places,
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
  self->send(fetch.tree, atom::fetched_v,
             fetched_pages{id, std::move(ended.arrived), fetch.found, fetch.reads.why()});
}

void prefetcher_state::forget_if_done(open_fetches::iterator entry) {
  if (entry != fetches.end()) {
    const auto& fetch = entry->second;
    if (!fetch.reads.is_ended() || !fetch.is_agreed || fetch.reads.reads_in_flight() > 0)
      return;
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
  self->state.options = options;
  self->state.storage = std::move(storage);
  self->state.ranks = std::move(ranks);
  return {
    [self](atom::fetch, const fetch_command& command) { self->state.fetch(command); },
    [self](atom::terminate, const terminate_command& command) {
      self->state.terminate(command.id);
    },
    [self](atom::stage, const staging_command& command) { self->state.fill_staging(command); },
    [self](atom::stage, const reclaim_command&) { self->state.reserve.clear(); },
    [self](atom::attach, const caf::strong_actor_ptr& store) {
      self->state.storage = caf::actor_cast<storage_actor>(store);
    },
    [self](atom::drain) { return self->state.drain(); },
    [self](atom::counters) { return self->state.counters; },
  };
}

} // namespace hicache
