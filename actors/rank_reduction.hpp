#pragma once

#include "hicache/rank_reducer.hpp"
#include "messages/interfaces.hpp"

#include <caf/actor_clock.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace hicache {

/// @relates rank_reduction
struct rank_reduction_state {
  static inline constexpr auto name = "rank_reduction";

  explicit rank_reduction_state(rank_reduction_core_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  caf::result<reduced> reduce(const reduction& request);

  std::string missing(uint8_t channel) const;

  void poll(uint64_t number);

  // -- internal steps ---------------------------------------------------------

  /// Moves all reductions forward: without a pause at first, then from timer to timer.
  void look_after();

  /// True if someone waits who expects an answer soon.
  bool is_urgent() const;

  void finish(size_t channel, result<std::vector<int64_t>> minimum);

  // -- data -------------------------------------------------------------------

  rank_reduction_core_actor::pointer self;
  /// Who waits on each channel; at most one.
  std::array<std::optional<caf::typed_response_promise<reduced>>, reduction_channel_count> waiting;
  /// Until when to go on without a pause.
  std::chrono::steady_clock::time_point spin_until{};
  /// When someone last asked who expects an answer soon; the pauses grow from there.
  caf::actor_clock::time_point entered{};
  /// The timer that counts; earlier ones are ignored.
  uint64_t timer = 0;
  /// Last, since its end answers those who wait.
  std::unique_ptr<rank_reducer> ranks;
};

/// Owns the agreement of the instance's ranks. Needs no thread of its own: it blocks for
/// limits::reduction_spin at most, which costs a step less than it would to wake another thread.
rank_reduction_core_actor::behavior_type
rank_reduction(rank_reduction_core_actor::stateful_pointer<rank_reduction_state> self,
               std::unique_ptr<rank_reducer> ranks);

} // namespace hicache
