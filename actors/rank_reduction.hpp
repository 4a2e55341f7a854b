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

  /// Advances all reductions: spins at first, then polls by timer.
  void look_after();

  /// True if a reduction other than admin is outstanding.
  bool is_urgent() const;

  void finish(size_t channel, result<std::vector<int64_t>> minimum);

  // -- data -------------------------------------------------------------------

  rank_reduction_core_actor::pointer self;
  /// The pending request of each channel.
  std::array<std::optional<caf::typed_response_promise<reduced>>, reduction_channel_count> waiting;
  /// End of the spin phase.
  std::chrono::steady_clock::time_point spin_until{};
  /// When the last non-admin reduction began; polling intervals grow from there.
  caf::actor_clock::time_point entered{};
  /// Number of the current timer; earlier ones are ignored.
  uint64_t timer = 0;
  /// Declared last, since its destructor answers pending requests.
  std::unique_ptr<rank_reducer> ranks;
};

/// Owns the rank reduction of the instance. Needs no thread of its own: it blocks for at most
/// limits::reduction_spin, which costs a step less than waking another thread.
rank_reduction_core_actor::behavior_type
rank_reduction(rank_reduction_core_actor::stateful_pointer<rank_reduction_state> self,
               std::unique_ptr<rank_reducer> ranks);

} // namespace hicache
