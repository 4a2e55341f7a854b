#include "actors/prefetcher.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace hicache {

namespace {

/// Outcome of a page that no read has returned yet.
constexpr auto unread = ec::stopping;

} // namespace

// -- request handling ---------------------------------------------------------

void prefetcher_state::fetch(const fetch_command& command) {
  const auto id = command.id;
  auto& fetch = fetches[id];
  fetch = open_fetch{command,
                     caf::actor_cast<tree_actor>(self->current_sender()),
                     std::make_shared<const std::vector<page_index>>(),
                     {}};
  if (peers_lost) {
    answer(id, fetch);
    fetches.erase(id);
    return;
  }
  hits.issue(id);
  auto batch = storage_batch{
    command.keys, nullptr, command.first, command.keys->size() - command.first, nullptr, 0};
  auto on_error = [this, id](const caf::error& err) {
    spdlog::warn("the store did not say which pages it has: {}", to_string(from_caf(err)));
    ++counters.storage_failures;
    on_hit(id, 0);
  };
  self->request(storage, caf::infinite, atom::exists_v, std::move(batch), options.timeout)
    .then([this, id](uint64_t pages) { on_hit(id, pages); }, on_error);
}

void prefetcher_state::terminate(fetch_id id) {
  const auto i = fetches.find(id);
  if (i != fetches.end() && !i->second.answered)
    answer(id, i->second);
}

void prefetcher_state::refill(const refill_command& command) {
  reserve.insert(reserve.end(), command.host_pages->begin(), command.host_pages->end());
}

// -- internal steps -----------------------------------------------------------

void prefetcher_state::on_hit(fetch_id id, uint64_t pages) {
  if (peers_lost)
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
      begin(id, pages);
    agree();
  };
  // Without its peers this rank can fetch nothing more; what the tree waits for ends empty.
  auto on_error = [this](const caf::error& err) {
    spdlog::error("the ranks cannot agree on hit lengths: {}", to_string(from_caf(err)));
    ++counters.errors;
    peers_lost = true;
    for (auto& [id, fetch] : fetches)
      if (!fetch.answered)
        answer(id, fetch);
    std::erase_if(fetches, [](const auto& entry) { return entry.second.reads_in_flight == 0; });
  };
  self
    ->request(ranks, caf::infinite, atom::reduce_v,
              reduction{reduction_channel::prefetch, std::move(*values)})
    .then(on_minimum, on_error);
}

void prefetcher_state::begin(fetch_id id, int64_t pages) {
  const auto i = fetches.find(id);
  HICACHE_CHECK(i != fetches.end());
  auto& fetch = i->second;
  if (fetch.answered) { // Ended before its length was known.
    fetches.erase(i);
    return;
  }
  auto wanted = std::min<uint64_t>(static_cast<uint64_t>(pages), reserve.size());
  if (static_cast<uint64_t>(pages) < options.threshold_pages)
    wanted = 0;
  fetch.pages = std::make_shared<const std::vector<page_index>>(
    reserve.end() - static_cast<ptrdiff_t>(wanted), reserve.end());
  reserve.resize(reserve.size() - wanted);
  fetch.outcomes.assign(wanted, unread);
  read_more(id, fetch);
  if (fetch.reads_in_flight == 0) {
    answer(id, fetch);
    fetches.erase(i);
  }
}

void prefetcher_state::read_more(fetch_id id, open_fetch& fetch) {
  const auto& command = fetch.command;
  while (!fetch.answered && !fetch.failed && fetch.asked < fetch.pages->size()
         && fetch.reads_in_flight < limits::storage_batches_in_flight) {
    const auto first = fetch.asked;
    const auto count = std::min<uint64_t>(fetch.pages->size() - first, limits::storage_batch_pages);
    fetch.asked += count;
    ++fetch.reads_in_flight;
    auto batch
      = storage_batch{command.keys, nullptr, command.first + first, count, fetch.pages, first};
    auto on_outcome
      = [this, id, first](const storage_outcome& outcome) { finish_read(id, first, outcome); };
    auto on_error = [this, id, first, count](const caf::error& err) {
      finish_read(id, first, {std::vector<ec>(count, from_caf(err).code)});
    };
    // No timeout here: the storage keeps the deadline, and until it answers it may still write to
    // the pages.
    self->request(storage, caf::infinite, atom::get_v, std::move(batch), options.timeout)
      .then(on_outcome, on_error);
  }
}

void prefetcher_state::finish_read(fetch_id id, uint64_t first, const storage_outcome& outcome) {
  const auto i = fetches.find(id);
  HICACHE_CHECK(i != fetches.end());
  auto& fetch = i->second;
  --fetch.reads_in_flight;
  for (auto k = size_t{0}; k < outcome.pages.size(); ++k) {
    const auto code = outcome.pages[k];
    fetch.outcomes[first + k] = code;
    if (code == ec::none) {
      counters.bytes_l3_to_l2 += options.page_bytes;
    } else {
      fetch.failed = true;
      if (code != ec::not_found) // Gone since the look-up: an ordinary miss.
        ++counters.storage_failures;
    }
    if (fetch.answered) // Nobody waits for this page any more.
      reserve.push_back((*fetch.pages)[first + k]);
  }
  read_more(id, fetch);
  if (fetch.reads_in_flight > 0)
    return;
  if (!fetch.answered)
    answer(id, fetch);
  fetches.erase(i);
}

void prefetcher_state::answer(fetch_id id, open_fetch& fetch) {
  const auto gap = std::find_if(fetch.outcomes.begin(), fetch.outcomes.end(),
                                [](ec code) { return code != ec::none; });
  const auto arrived = gap - fetch.outcomes.begin();
  // Pages of reads in flight return to the reserve when their read does; all others do now.
  for (auto k = static_cast<size_t>(arrived); k < fetch.pages->size(); ++k)
    if (k >= fetch.asked || fetch.outcomes[k] != unread)
      reserve.push_back((*fetch.pages)[k]);
  auto pages = std::make_shared<const std::vector<page_index>>(fetch.pages->begin(),
                                                               fetch.pages->begin() + arrived);
  fetch.answered = true;
  self->send(fetch.tree, atom::fetched_v, fetched_pages{id, std::move(pages)});
}

// -- actor --------------------------------------------------------------------

prefetcher_actor::behavior_type
prefetcher(prefetcher_actor::stateful_pointer<prefetcher_state> self, prefetcher_options options,
           storage_actor storage, consensus_actor ranks) {
  HICACHE_CHECK(storage && ranks);
  self->state.options = options;
  self->state.storage = std::move(storage);
  self->state.ranks = std::move(ranks);
  return {
    [self](atom::fetch, const fetch_command& command) { self->state.fetch(command); },
    [self](atom::terminate, const terminate_command& command) {
      self->state.terminate(command.id);
    },
    [self](atom::refill, const refill_command& command) { self->state.refill(command); },
    [self](atom::counters) { return self->state.counters; },
  };
}

} // namespace hicache
