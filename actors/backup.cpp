#include "actors/backup.hpp"

#include "base/limits.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace hicache {

// -- request handling ---------------------------------------------------------

void backup_state::enqueue(const backup_command& command) {
  queue.push_back({command, caf::actor_cast<tree_core_actor>(self->current_sender())});
  send_next();
}

void backup_state::drop(operation_id id) {
  const auto entry
    = std::ranges::find_if(queue, [id](const pending& x) { return x.command.id == id; });
  if (entry == queue.end())
    return; // It was done first.
  entry->is_dropped = true;
  if (entry != queue.begin()) {
    counters.dropped_backups += entry->command.keys->size();
    self->send(entry->tree, atom::done_v, operation_done{operation_kind::backup, id});
    queue.erase(entry);
  } else if (!is_busy) {
    finish_command();
    send_next();
  }
}

void backup_state::try_again(uint64_t pause) {
  if (!is_pausing || pause != pauses)
    return;
  is_pausing = false;
  ++counters.backup_retries;
  send_next();
}

caf::result<atom::ok> backup_state::drain() {
  auto promise = self->make_response_promise<atom::ok>();
  draining.push_back(promise);
  end_drain();
  return promise;
}

// -- internal steps -----------------------------------------------------------

void backup_state::send_next() {
  if (is_busy || is_pausing || queue.empty())
    return;
  if (!storage) {
    while (!queue.empty())
      finish_command();
    return;
  }
  const auto& command = queue.front().command;
  const auto left = command.keys->size() - stored;
  const auto count = std::min<uint64_t>(left, limits::storage_batch_pages);
  auto batch = storage_batch{command.keys,       command.parents, stored,        count,
                             command.host_pages, stored,          command.tenant};
  auto on_outcome = [this, count](const storage_outcome& outcome) { finish_batch(count, outcome); };
  auto on_error = [this, count](const caf::error& err) {
    finish_batch(count, {std::vector<ec>(count, from_caf(err).code)});
  };
  is_busy = true;
  // The storage keeps the deadline itself and always answers, and says whether it still reads the
  // pages.
  self->request(storage, caf::infinite, atom::set_v, std::move(batch), timeout)
    .then(on_outcome, on_error);
}

void backup_state::finish_batch(uint64_t count, const storage_outcome& outcome) {
  is_busy = false;
  if (outcome.ticket != 0)
    return give_up_late(outcome.ticket);
  const auto failed = std::ranges::find_if(outcome.pages, [](ec code) { return code != ec::none; });
  const auto good = static_cast<uint64_t>(failed - outcome.pages.begin());
  counters.bytes_l2_to_l3 += (good - outcome.left_to_others) * page_bytes;
  stored += good;
  if (good > 0) {
    failures = 0;
    is_store_failing = false;
  }
  const auto& oldest = queue.front();
  if (oldest.is_dropped || stored == oldest.command.keys->size())
    finish_command();
  else if (good < count)
    fail_batch(*failed);
  send_next();
}

void backup_state::fail_batch(ec why) {
  // A full store is no failure: the page is simply not there for others.
  if (why == ec::store_full)
    return finish_command();
  if (why == ec::store_unavailable) {
    counters.dropped_backups += queue.front().command.keys->size() - stored;
    return finish_command();
  }
  ++counters.storage_failures;
  ++failures;
  if (is_store_failing || failures == limits::backup_attempts) {
    if (!std::exchange(is_store_failing, true))
      spdlog::warn("writes to L3 fail and are given up until one succeeds: {}", sentence(why));
    counters.dropped_backups += queue.front().command.keys->size() - stored;
    return finish_command();
  }
  is_pausing = true;
  self->delayed_send(self, caf::timespan{limits::backup_pause} * (1 << (failures - 1)),
                     atom::tick_v, ++pauses);
}

void backup_state::give_up_late(uint64_t ticket) {
  ++counters.storage_failures;
  const auto& [command, tree, is_dropped] = queue.front();
  auto fact = operation_done{
    .kind = operation_kind::backup, .id = command.id, .stored = stored, .is_in_quarantine = true};
  self->send(tree, atom::done_v, fact);
  fact.is_in_quarantine = false;
  ++quarantined;
  // Without the storage nobody can tell any more.
  self->request(storage, caf::infinite, atom::drain_v, ticket)
    .then(
      [this, fact, tree = tree](atom::ok) {
        self->send(tree, atom::done_v, fact);
        --quarantined;
        end_drain();
      },
      [](const caf::error&) {});
  counters.dropped_backups += command.keys->size() - stored;
  forget_command();
  send_next();
}

void backup_state::finish_command() {
  const auto& [command, tree, is_dropped] = queue.front();
  if (is_dropped)
    counters.dropped_backups += command.keys->size() - stored;
  self->send(tree, atom::done_v,
             operation_done{.kind = operation_kind::backup, .id = command.id, .stored = stored});
  forget_command();
}

void backup_state::forget_command() {
  queue.pop_front();
  stored = 0;
  failures = 0;
  is_pausing = false;
  end_drain();
}

void backup_state::end_drain() {
  if (queue.empty() && quarantined == 0)
    for (auto& promise : std::exchange(draining, {}))
      promise.deliver(atom::ok_v);
}

// -- actor --------------------------------------------------------------------

backup_actor::behavior_type backup(backup_actor::stateful_pointer<backup_state> self,
                                   storage_actor storage, caf::timespan timeout,
                                   uint64_t page_bytes) {
  self->state.storage = std::move(storage);
  self->state.timeout = timeout;
  self->state.page_bytes = page_bytes;
  return {
    [self](atom::backup, const backup_command& command) { self->state.enqueue(command); },
    [self](atom::drop, const drop_command& command) { self->state.drop(command.id); },
    [self](atom::tick, uint64_t pause) { self->state.try_again(pause); },
    [self](atom::attach, const caf::strong_actor_ptr& store) {
      self->state.storage = caf::actor_cast<storage_actor>(store);
    },
    [self](atom::drain) { return self->state.drain(); },
    [self](atom::counters) { return self->state.counters; },
  };
}

} // namespace hicache
