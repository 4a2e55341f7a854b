#include "actors/controller.hpp"

#include "base/check.hpp"

#include <caf/actor_cast.hpp>
#include <caf/send.hpp>
#include <spdlog/spdlog.h>

#include <utility>

namespace hicache {

// -- request handling ---------------------------------------------------------

void controller_state::copy(const copy_batch& batch) {
  for (const auto& command : batch.writes)
    counters.bytes_l1_to_l2 += command.l2_pages->size() * page_bytes;
  for (const auto& command : batch.loads)
    counters.bytes_l2_to_l1 += command.l1_pages->size() * page_bytes;
  // Loads first: the engine waits for them.
  if (!batch.loads.empty())
    copies->load(batch.loads, report(operation_kind::load));
  if (exported)
    for (const auto& command : batch.writes)
      exported->reclaim(*command.l2_pages);
  if (!batch.writes.empty())
    copies->store(batch.writes, report(operation_kind::write));
}

// -- internal steps -----------------------------------------------------------

copy_engine::callback controller_state::report(operation_kind kind) {
  auto tree = caf::actor_cast<tree_core_actor>(self->current_sender());
  return [tree, kind](operation_id id, const result<void>& outcome) {
    if (!outcome)
      spdlog::error("a copy between L1 and L2 failed: {}", to_string(outcome.error()));
    caf::anon_send(tree, atom::done_v,
                   operation_done{kind, id, outcome.has_value(),
                                  !outcome && outcome.error().code == ec::device_lost});
  };
}

// -- actor --------------------------------------------------------------------

controller_actor::behavior_type
controller(controller_actor::stateful_pointer<controller_state> self,
           std::unique_ptr<copy_engine> copies, uint64_t page_bytes,
           std::shared_ptr<exported_pages> exported) {
  HICACHE_CHECK(copies != nullptr && page_bytes > 0);
  self->state.copies = std::move(copies);
  self->state.page_bytes = page_bytes;
  self->state.exported = std::move(exported);
  return {
    [self](atom::copy, const copy_batch& batch) { self->state.copy(batch); },
    [self](atom::counters) { return self->state.counters; },
  };
}

} // namespace hicache
