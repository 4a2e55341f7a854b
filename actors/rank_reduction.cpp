#include "actors/rank_reduction.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <caf/actor_cast.hpp>
#include <caf/send.hpp>

#include <algorithm>
#include <utility>

namespace hicache {

// -- request handling ---------------------------------------------------------

caf::result<reduced> rank_reduction_state::reduce(const reduction& request) {
  const auto channel = static_cast<size_t>(request.channel);
  HICACHE_CHECK(channel < waiting.size());
  if (waiting[channel])
    return to_caf({ec::limit_reached, "a reduction of this channel is outstanding"});
  auto promise = self->make_response_promise<reduced>();
  waiting[channel] = promise;
  if (request.channel != reduction_channel::admin) {
    spin_until = std::chrono::steady_clock::now() + limits::reduction_spin;
    entered = self->clock().now();
  }
  ranks->reduce_min(request.channel, request.values,
                    [this, channel](auto minimum) { finish(channel, std::move(minimum)); });
  look_after();
  return promise;
}

std::string rank_reduction_state::missing(uint8_t channel) const {
  HICACHE_CHECK(channel < waiting.size());
  if (!waiting[channel])
    return "no rank is waited for";
  return ranks->missing(static_cast<reduction_channel>(channel));
}

void rank_reduction_state::poll(uint64_t number) {
  if (number == 0 || number == timer)
    look_after();
}

// -- internal steps -----------------------------------------------------------

void rank_reduction_state::look_after() {
  // Ranks in lockstep enter within microseconds of each other. Stop spinning when a message
  // arrives.
  while (ranks->progress()) {
    const auto urgent = is_urgent();
    const auto spins = urgent && std::chrono::steady_clock::now() < spin_until;
    if (spins && self->mailbox().empty())
      continue;
    ++timer;
    if (spins) {
      self->send(self, atom::poll_v, timer);
    } else if (urgent) {
      const auto waited = caf::timespan{self->clock().now() - entered};
      const auto pause = std::clamp<caf::timespan>(waited / 8, limits::reduction_pause_min,
                                                   limits::reduction_pause_max);
      self->delayed_send(self, pause, atom::poll_v, timer);
    } else {
      self->delayed_send(self, limits::admin_pause, atom::poll_v, timer);
    }
    return;
  }
}

bool rank_reduction_state::is_urgent() const {
  for (size_t i = 0; i < waiting.size(); ++i)
    if (waiting[i] && i != static_cast<size_t>(reduction_channel::admin))
      return true;
  return false;
}

void rank_reduction_state::finish(size_t channel, result<std::vector<int64_t>> minimum) {
  HICACHE_CHECK(waiting[channel]);
  auto promise = *std::exchange(waiting[channel], std::nullopt);
  if (minimum)
    promise.deliver(reduced{std::move(*minimum)});
  else
    promise.deliver(to_caf(minimum.error()));
}

// -- actor --------------------------------------------------------------------

rank_reduction_core_actor::behavior_type
rank_reduction(rank_reduction_core_actor::stateful_pointer<rank_reduction_state> self,
               std::unique_ptr<rank_reducer> ranks) {
  HICACHE_CHECK(ranks != nullptr);
  self->state.ranks = std::move(ranks);
  self->state.ranks->on_notify([me = caf::actor_cast<caf::weak_actor_ptr>(self)] {
    if (const auto to = caf::actor_cast<rank_reduction_core_actor>(me))
      caf::anon_send(to, atom::poll_v, uint64_t{0});
  });
  return {
    [self](atom::reduce, const reduction& request) { return self->state.reduce(request); },
    [self](atom::missing, uint8_t channel) { return self->state.missing(channel); },
    [self](atom::poll, uint64_t number) { self->state.poll(number); },
  };
}

} // namespace hicache
