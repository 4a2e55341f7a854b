#include "actors/backup.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <caf/actor_cast.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace hicache {

// -- request handling ---------------------------------------------------------

void backup_state::enqueue(const backup_command& command) {
  queue.push_back({command, caf::actor_cast<tree_actor>(self->current_sender())});
  send_next();
}

// -- internal steps -----------------------------------------------------------

void backup_state::send_next() {
  if (busy || queue.empty())
    return;
  const auto& command = queue.front().command;
  const auto left = command.keys->size() - stored;
  const auto count = std::min<uint64_t>(left, limits::storage_batch_pages);
  auto batch
    = storage_batch{command.keys, command.parents, stored, count, command.host_pages, stored};
  auto on_outcome = [this, count](const storage_outcome& outcome) { finish_batch(count, outcome); };
  auto on_error = [this, count](const caf::error& err) {
    const auto why = from_caf(err);
    spdlog::warn("backup of {} pages failed: {}", count, to_string(why));
    finish_batch(count, {std::vector<ec>(count, why.code)});
  };
  busy = true;
  // The storage keeps the deadline itself and always answers; a timeout here would leave it reading
  // pages that the tree thinks are free.
  self->request(storage, caf::infinite, atom::set_v, std::move(batch), timeout)
    .then(on_outcome, on_error);
}

void backup_state::finish_batch(uint64_t count, const storage_outcome& outcome) {
  busy = false;
  const auto failed = std::find_if(outcome.pages.begin(), outcome.pages.end(),
                                   [](ec code) { return code != ec::none; });
  const auto good = static_cast<uint64_t>(failed - outcome.pages.begin());
  counters.bytes_l2_to_l3 += good * page_bytes;
  stored += good;
  // A full store is no failure: the page is simply not there for others.
  if (good < count && *failed != ec::store_full)
    ++counters.storage_failures;
  if (good < count || stored == queue.front().command.keys->size())
    finish_command();
  send_next();
}

void backup_state::finish_command() {
  const auto& [command, tree] = queue.front();
  self->send(tree, atom::done_v, operation_done{operation_kind::backup, command.id, true});
  queue.pop_front();
  stored = 0;
}

// -- actor --------------------------------------------------------------------

backup_actor::behavior_type backup(backup_actor::stateful_pointer<backup_state> self,
                                   storage_actor storage, caf::timespan timeout,
                                   uint64_t page_bytes) {
  HICACHE_CHECK(storage);
  self->state.storage = std::move(storage);
  self->state.timeout = timeout;
  self->state.page_bytes = page_bytes;
  return {
    [self](atom::backup, const backup_command& command) { self->state.enqueue(command); },
    [self](atom::counters) { return self->state.counters; },
  };
}

} // namespace hicache
