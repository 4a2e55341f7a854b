#pragma once

#include "base/clock.hpp"
#include "base/error.hpp"
#include "messages/caf_error.hpp"

#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

namespace hicache {

/// What is left of the time until a deadline, for a request: at least a moment, and not so long
/// that CAF's clock would overflow.
inline caf::timespan time_left(const clock_source& clock, time_point deadline) {
  const auto now = clock.now();
  const auto left = deadline > now ? caf::timespan{deadline - now} : caf::timespan{1};
  return std::min(left, caf::timespan{std::chrono::hours{1}});
}

/// Asks an actor and waits for its answer. For threads that are no actors.
/// @param timeout caf::infinite, or for how long.
template <class Answer, class Handle, class Time, class... Args>
result<Answer> ask(caf::actor_system& system, const Handle& to, const Time& timeout,
                   Args&&... args) {
  auto self = caf::scoped_actor{system};
  auto answer = result<Answer>{};
  self->request(to, timeout, std::forward<Args>(args)...)
    .receive([&](Answer& x) { answer = std::move(x); },
             [&](caf::error& err) { answer = tl::unexpected{from_caf(err)}; });
  return answer;
}

} // namespace hicache
