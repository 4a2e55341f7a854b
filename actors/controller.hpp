#pragma once

#include "backends/cluster/exported_pages.hpp"
#include "gpu/device.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>

#include <memory>

namespace hicache {

/// @relates controller
struct controller_state {
  static inline constexpr auto name = "controller";

  explicit controller_state(controller_actor::pointer owner) : self(owner) {}

  void copy(const copy_batch& batch);

  /// Completion callback of a command; notifies the tree. Called on the copy engine's thread.
  copy_engine::callback report(operation_kind kind);

  controller_actor::pointer self;
  std::unique_ptr<copy_engine> copies;
  uint64_t page_bytes = 0;
  std::shared_ptr<exported_pages> exported;
  rank_counters counters;
};

/// Moves pages between L1 and L2 and reports to the sender of the batch.
/// @param page_bytes Bytes of one page on this rank, for the counters.
/// @param exported Revokes pages of L2 before they are overwritten; null if none are exported.
controller_actor::behavior_type
controller(controller_actor::stateful_pointer<controller_state> self,
           std::unique_ptr<copy_engine> copies, uint64_t page_bytes,
           std::shared_ptr<exported_pages> exported);

} // namespace hicache
