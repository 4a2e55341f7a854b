#pragma once

#include "tests/actors/fakes.hpp"

#include <caf/actor_cast.hpp>
#include <caf/sec.hpp>

#include <type_traits>

namespace hicache::test {

/// What a connection holds of one direction.
using held_messages = std::deque<std::function<void(caf::event_based_actor*)>>;

/// A test double of the network between one member and one shard. Keeps the order of requests and
/// that of answers, as CAF does, and passes each when the test says so. To the shard it is the
/// member: its end is the member's death.
struct connection {
  /// What the member takes for the shard, and the shard for the member.
  caf::actor front;
  index_actor shard;
  /// Set when the segment was spawned.
  segment_actor member;
  held_messages requests;
  held_messages answers;
  /// Mounts that passed, and at most how many had a reason: the connection itself (counted here and
  /// when its member first looks at it), an answer that the shard does not know the member, shards
  /// that were given up, a shard that was taken for lost.
  uint64_t mounts = 0;
  uint64_t reasons = 1;
  /// Of the latest mount, and of the latest that the shard did not know.
  uint64_t epoch = 0;
  uint64_t unknown_epoch = 0;
  /// A partition: nothing passes, nothing is lost.
  bool is_held = false;

  index_actor as_shard() const { return caf::actor_cast<index_actor>(front); }
};

using connection_ptr = std::shared_ptr<connection>;

/// The epoch under which a member speaks; 0 if the request names none.
template <class Request>
uint64_t epoch_of(const Request& request) {
  if constexpr (requires { request.epoch; })
    return request.epoch;
  else
    return 0;
}

template <class Answer, class Verb, class Request>
caf::response_promise hold(caf::event_based_actor* self, const connection_ptr& at, Verb verb,
                           const Request& request) {
  auto promise = self->make_response_promise();
  auto on_answer = [at, promise, epoch = epoch_of(request)](const Answer& x) {
    at->answers.push_back([at = at.get(), promise, epoch, x](auto*) mutable {
      if constexpr (std::is_same_v<Answer, membership>)
        if (!x.known && epoch == at->epoch && at->unknown_epoch != epoch) {
          at->unknown_epoch = epoch;
          ++at->reasons;
        }
      promise.deliver(x);
    });
  };
  auto on_error = [at, promise](const caf::error& err) {
    // Over a network nobody says that the receiver is dead.
    if (err != caf::sec::request_receiver_down)
      at->answers.push_back([promise, err](auto*) mutable { promise.deliver(err); });
  };
  at->requests.push_back([=, at = at.get()](caf::event_based_actor* me) {
    if constexpr (std::is_same_v<Request, member_info>) {
      ++at->mounts;
      at->epoch = request.epoch;
    }
    me->request(at->shard, caf::infinite, verb, request).then(on_answer, on_error);
  });
  return promise;
}

inline caf::behavior run_connection(caf::event_based_actor* self, connection_ptr at) {
  // What it holds would keep it alive.
  self->set_exit_handler([self, at](const caf::exit_msg& msg) {
    at->requests.clear();
    at->answers.clear();
    at->front = nullptr;
    at->member = nullptr;
    self->quit(msg.reason);
  });
  return {
    [=](atom::mount, const member_info& x) { return hold<membership>(self, at, atom::mount_v, x); },
    [=](atom::tick, const heartbeat& x) { return hold<membership>(self, at, atom::tick_v, x); },
    [=](atom::publish, const published_pages& x) {
      return hold<membership>(self, at, atom::publish_v, x);
    },
    [=](atom::withdraw, const withdrawn_pages& x) {
      return hold<membership>(self, at, atom::withdraw_v, x);
    },
    [=](atom::members, const member_query& x) {
      return hold<member_list>(self, at, atom::members_v, x);
    },
    [self](const errand& x) { x.run(self); },
  };
}

/// Lets the next message of one direction pass, when the connection is scheduled.
inline void pass_one(const connection_ptr& at, held_messages connection::*direction) {
  if ((at.get()->*direction).empty())
    return;
  caf::anon_send(at->front, errand{[at, direction](caf::event_based_actor* self) {
                   auto& held = at.get()->*direction;
                   if (held.empty())
                     return;
                   const auto next = std::move(held.front());
                   held.pop_front();
                   next(self);
                 }});
}

} // namespace hicache::test
