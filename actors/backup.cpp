#include "actors/backup.hpp"

#include "cache/hash/page_names.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace hicache {

// -- request handling ---------------------------------------------------------

void backup_state::enqueue(const backup_command& command) {
  commands.emplace(command.id,
                   pending{command, caf::actor_cast<tree_core_actor>(self->current_sender())});
  window.enqueue(command.id, command.names->size());
  go_on();
}

void backup_state::drop(operation_id id) {
  window.drop(id);
  go_on();
}

void backup_state::resume(uint64_t pause) {
  window.resume(pause);
  go_on();
}

void backup_state::attach(storage_actor store) {
  storage = std::move(store);
  orders_writes = false;
  if (!storage)
    return;
  auto on_status = [this, from = storage](const storage_status& status) {
    if (storage == from)
      orders_writes = status.orders_writes;
  };
  // Until the reply arrives, batches wait for their parents' batches.
  self->request(storage, caf::infinite, atom::status_v)
    .then(std::move(on_status), [](const caf::error&) {});
}

caf::result<atom::ok> backup_state::drain() {
  auto promise = self->make_response_promise<atom::ok>();
  draining.push_back(promise);
  go_on();
  return promise;
}

rank_counters backup_state::counters() const {
  auto counters = window.counters();
  counters.bytes_l2_to_l3 = window.written() * options.page_bytes;
  return counters;
}

// -- internal steps -----------------------------------------------------------

void backup_state::go_on() {
  if (!storage)
    window.drop_all();
  else
    while (const auto batch = window.next(orders_writes))
      send(*batch);
  for (const auto& end : window.take_ends()) {
    const auto entry = commands.find(end.id);
    self->send(entry->second.tree, atom::done_v,
               operation_done{.kind = operation_kind::backup,
                              .id = end.id,
                              .stored = end.stored,
                              .is_in_quarantine = end.is_in_quarantine,
                              .lost = lost});
    if (!end.is_in_quarantine)
      commands.erase(entry);
  }
  if (window.is_idle())
    for (auto& promise : std::exchange(draining, {}))
      promise.deliver(atom::ok_v);
}

void backup_state::send(const backup_window::batch& batch) {
  const auto& command = commands.at(batch.id).command;
  auto pages = storage_batch{.names = command.names,
                             .first = batch.first,
                             .count = batch.count,
                             .l2_pages = command.l2_pages,
                             .l2_first = batch.first,
                             .tenant = command.tenant};
  auto on_outcome = [this, batch](const storage_outcome& outcome) { finish(batch, outcome); };
  auto on_error = [this, batch](const caf::error& err) {
    finish(batch, {std::vector<ec>(batch.count, from_caf(err).code)});
  };
  // No request timeout: the storage actor enforces the deadline, always answers, and reports
  // whether the store may still read the pages.
  self->request(storage, caf::infinite, atom::set_v, std::move(pages), options.timeout)
    .then(std::move(on_outcome), std::move(on_error));
}

void backup_state::finish(const backup_window::batch& batch, const storage_outcome& outcome) {
  lost = std::max(lost, outcome.lost);
  const auto is_late = outcome.ticket != 0;
  const auto [pause, warning] = window.finish(batch, outcome, is_late);
  if (pause)
    self->delayed_send(self, caf::timespan{*pause}, atom::tick_v, window.pauses());
  if (warning)
    spdlog::warn("writes to L3 fail and are dropped until one succeeds: {}", sentence(*warning));
  if (is_late) {
    auto on_returned = [this, batch](atom::ok) {
      window.returned(batch);
      go_on();
    };
    // If the storage is gone, the pages stay quarantined.
    self->request(storage, caf::infinite, atom::drain_v, outcome.ticket)
      .then(std::move(on_returned), [](const caf::error&) {});
  }
  go_on();
}

// -- actor --------------------------------------------------------------------

backup_actor::behavior_type backup(backup_actor::stateful_pointer<backup_state> self,
                                   storage_actor storage, backup_options options) {
  self->state.options = options;
  self->state.window = backup_window{options.traffic};
  self->state.attach(std::move(storage));
  return {
    [self](atom::backup, const backup_command& command) { self->state.enqueue(command); },
    [self](atom::drop, const drop_command& command) { self->state.drop(command.id); },
    [self](atom::tick, uint64_t pause) { self->state.resume(pause); },
    [self](atom::attach, const caf::strong_actor_ptr& store) {
      self->state.attach(caf::actor_cast<storage_actor>(store));
    },
    [self](atom::drain) { return self->state.drain(); },
    [self](atom::counters) { return self->state.counters(); },
  };
}

} // namespace hicache
