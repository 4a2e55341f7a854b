#pragma once

#include "hicache/caf_error.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <caf/actor_system.hpp>
#include <caf/after.hpp>
#include <caf/blocking_actor.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/sec.hpp>

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

namespace hicache {

/// Time left until a deadline: at least 1 ns, at most an hour, or CAF's clock would overflow.
inline caf::timespan time_left(const clock_source& clock, time_point deadline) {
  const auto now = clock.now();
  const auto left = deadline > now ? caf::timespan{deadline - now} : caf::timespan{1};
  return std::min(left, caf::timespan{std::chrono::hours{1}});
}

/// Waits for the answer to a request sent with caf::infinite, up to a timeout, after which on_error
/// gets caf::sec::request_timeout. A timeout of the request itself would wake CAF's clock thread.
template <class Response, class OnAnswer, class OnError>
void receive_within(caf::scoped_actor& self, Response& answer, caf::timespan timeout,
                    OnAnswer on_answer, OnError on_error) {
  auto once = caf::blocking_actor::accept_one_cond{};
  const auto on_timeout = [&on_error] {
    auto err = caf::make_error(caf::sec::request_timeout);
    on_error(err);
  };
  self->varargs_receive(
    once, answer.id(), std::move(on_answer), [&on_error](caf::error& err) { on_error(err); },
    caf::after(timeout) >> on_timeout);
}

/// Sends a request to an actor and waits for the answer. For threads that are not actors.
/// @param timeout caf::infinite, or a duration.
template <class Answer, class Handle, class Time, class... Args>
result<Answer> ask(caf::actor_system& system, const Handle& to, const Time& timeout,
                   Args&&... args) {
  auto self = caf::scoped_actor{system};
  auto answer = result<Answer>{};
  const auto on_answer = [&answer](Answer& x) { answer = std::move(x); };
  const auto on_error = [&answer](caf::error& err) { answer = tl::unexpected{from_caf(err)}; };
  auto response = self->request(to, caf::infinite, std::forward<Args>(args)...);
  if constexpr (std::is_same_v<Time, caf::infinite_t>)
    response.receive(on_answer, on_error);
  else
    receive_within(self, response, timeout, on_answer, on_error);
  return answer;
}

} // namespace hicache
