#pragma once

#include "messages/interfaces.hpp"
#include "transport/agreement.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <array>
#include <memory>
#include <optional>

namespace hicache {

/// @relates consensus
struct consensus_state {
  static inline constexpr auto name = "consensus";

  explicit consensus_state(consensus_actor::pointer owner) : self(owner) {}

  caf::result<reduced> reduce(const reduction& request);

  void poll();

  void finish(uint8_t channel, const reduced& outcome);

  consensus_actor::pointer self;
  std::unique_ptr<agreement> ranks;
  /// Who waits on each channel; at most one.
  std::array<std::optional<caf::typed_response_promise<reduced>>, reduction_channel_count> waiting;
  /// True while a poll message is on its way.
  bool polling = false;
  /// Polls since anything finished; decides when to stop spinning.
  uint32_t idle_polls = 0;
};

/// Owns the agreement of the instance's ranks. Spawn detached with MPI: looking after reductions
/// takes a thread of its own.
consensus_actor::behavior_type consensus(consensus_actor::stateful_pointer<consensus_state> self,
                                         std::unique_ptr<agreement> ranks);

} // namespace hicache
