#include "actors/consensus.hpp"

#include "base/check.hpp"

#include <caf/send.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace hicache {

namespace {

/// Polls without a pause, so that an agreement among ranks that arrive together takes microseconds.
constexpr uint32_t spin_polls = 64;

/// Pause between polls after that; doubles up to the second value, so that waiting for a slow rank
/// burns no core.
constexpr auto pause_min = std::chrono::microseconds{20};
constexpr auto pause_max = std::chrono::microseconds{1000};

caf::timespan pause_after(uint32_t idle_polls) {
  const auto doublings = std::min((idle_polls - spin_polls) / 8, 6u);
  return std::min<caf::timespan>(pause_min * (1 << doublings), pause_max);
}

} // namespace

caf::result<reduced> consensus_state::reduce(const reduction& request) {
  const auto channel = static_cast<uint8_t>(request.channel);
  HICACHE_CHECK(channel < waiting.size());
  if (waiting[channel])
    return to_caf({ec::limit_reached, "a reduction of this channel is outstanding"});
  auto promise = self->make_response_promise<reduced>();
  waiting[channel] = promise;
  // The callback may run on another rank's thread, where only a message is allowed.
  auto on_done = [me = consensus_actor{self}, channel](result<std::vector<int64_t>> minimum) {
    auto outcome = minimum ? reduced{std::move(*minimum), {}} : reduced{{}, minimum.error()};
    caf::anon_send(me, atom::done_v, channel, std::move(outcome));
  };
  ranks->reduce_min(request.channel, request.values, on_done);
  idle_polls = 0;
  if (!polling)
    poll();
  return promise;
}

void consensus_state::poll() {
  polling = ranks->progress();
  if (!polling)
    return;
  if (++idle_polls <= spin_polls)
    self->send(self, atom::poll_v);
  else
    self->delayed_send(self, pause_after(idle_polls), atom::poll_v);
}

void consensus_state::finish(uint8_t channel, const reduced& outcome) {
  HICACHE_CHECK(waiting[channel]);
  auto promise = *std::exchange(waiting[channel], std::nullopt);
  if (outcome.failure.code != ec::none)
    promise.deliver(to_caf(outcome.failure));
  else
    promise.deliver(outcome);
}

consensus_actor::behavior_type consensus(consensus_actor::stateful_pointer<consensus_state> self,
                                         std::unique_ptr<agreement> ranks) {
  HICACHE_CHECK(ranks != nullptr);
  self->state.ranks = std::move(ranks);
  return {
    [self](atom::reduce, const reduction& request) { return self->state.reduce(request); },
    [self](atom::poll) { self->state.poll(); },
    [self](atom::done, uint8_t channel, const reduced& outcome) {
      self->state.finish(channel, outcome);
    },
  };
}

} // namespace hicache
