#pragma once

// CAF's own test DSL defines macros that clash with GoogleTest and fires timeouts on its own. This
// fixture talks to CAF's deterministic scheduler directly.

#include "hicache/error.hpp"
#include "hicache/system_config.hpp"
#include "messages/interfaces.hpp"
#include "tests/support/manual_clock.hpp"

#include <caf/actor_system.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <caf/send.hpp>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace hicache::test {

/// Something that the fixture's asker does in its own context, where requests may be sent.
struct errand {
  std::function<void(caf::event_based_actor*)> run;
};

} // namespace hicache::test

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::test::errand)

namespace hicache::test {

/// The answer to a request, as soon as there is one. Copies share it.
template <class T>
class reply {
public:
  bool arrived() const noexcept { return state_->has_value(); }

  /// The value or the error answered; code `none` and "no answer" while there is neither.
  result<T> get() const {
    if (arrived())
      return **state_;
    return fail(ec::none, "no answer");
  }

  /// The code answered; `none` for a value.
  ec code() const { return arrived() && !**state_ ? (**state_).error().code : ec::none; }

  void set(result<T> x) const { *state_ = std::move(x); }

private:
  std::shared_ptr<std::optional<result<T>>> state_ = std::make_shared<std::optional<result<T>>>();
};

/// Runs actors on the calling thread, one message at a time, on clocks that only the test moves.
class actor_world {
public:
  actor_world()
    : sys(testing(cfg)), sched(dynamic_cast<caf::scheduler::test_coordinator&>(sys.scheduler())) {
    sched.clock().current_time += std::chrono::hours{1}; // Time is never 0.
    asker_ = spawn_asker();
  }

  actor_world(const actor_world&) = delete;

  actor_world& operator=(const actor_world&) = delete;

  ~actor_world() { stop_all(); }

  /// Stops what was spawned. An actor with a timer of its own would live for ever. Worlds whose
  /// actors use memory of their own call it first in their destructors.
  void stop_all() {
    for (const auto& each : std::exchange(spawned_, {}))
      caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
    run();
  }

  /// Spawns an actor and lets it begin.
  template <class... Args>
  auto spawn(Args&&... args) {
    auto actor = spawn_inside(std::forward<Args>(args)...);
    run();
    return actor;
  }

  /// The same inside of another actor's handler: it begins with its first message.
  template <class... Args>
  auto spawn_inside(Args&&... args) {
    auto actor = sys.spawn(std::forward<Args>(args)...);
    spawned_.push_back(caf::actor_cast<caf::strong_actor_ptr>(actor));
    return actor;
  }

  /// Somebody else who sends requests.
  caf::actor spawn_asker() {
    return spawn_inside([](caf::event_based_actor* self) {
      return caf::behavior{[self](const errand& x) { x.run(self); }};
    });
  }

  /// Ends an actor as a crash would, and delivers what follows from it.
  template <class Handle>
  void stop(const Handle& actor) {
    caf::anon_send_exit(actor, caf::exit_reason::kill);
    run();
  }

  /// Delivers messages until none is left. Does not touch the clocks.
  void run() {
    while (sched.try_run_once())
      continue;
  }

  /// Delivers messages while any is left and `more` says so; `random` picks who goes next. Order
  /// within a mailbox stays.
  template <class Random, class More>
  void run_shuffled(Random& random, More more) {
    while (sched.has_job() && more()) {
      std::swap(sched.jobs.front(), sched.jobs[random() % sched.jobs.size()]);
      sched.run_once();
    }
  }

  /// Moves both clocks, fires due timers once and delivers what they cause.
  void advance(caf::timespan by) {
    clock.advance(by);
    sched.advance_time(by);
    run();
  }

  /// Moves the clocks in equal steps, so that timers that are set again fire again.
  void advance_in_steps(caf::timespan by, int steps) {
    for (auto i = 0; i < steps; ++i)
      advance(by / steps);
  }

  /// Sends a request; nothing is delivered yet.
  template <class Result, class Handle, class... Args>
  reply<Result> send_request(const Handle& to, Args... args) {
    return send_request_as<Result>(asker_, to, std::move(args)...);
  }

  /// The same as somebody whom spawn_asker made.
  template <class Result, class Handle, class... Args>
  reply<Result> send_request_as(const caf::actor& from, const Handle& to, Args... args) {
    auto answer = reply<Result>{};
    auto send = [to, answer,
                 sent = std::make_tuple(std::move(args)...)](caf::event_based_actor* self) {
      std::apply(
        [&](const auto&... xs) {
          self->request(to, caf::infinite, xs...)
            .then([answer](const Result& x) { answer.set(x); },
                  [answer](const caf::error& err) { answer.set(tl::unexpected{from_caf(err)}); });
        },
        sent);
    };
    caf::anon_send(from, errand{std::move(send)});
    return answer;
  }

  /// Sends a request and delivers everything.
  template <class Result, class Handle, class... Args>
  result<Result> ask(const Handle& to, Args... args) {
    const auto answer = send_request<Result>(to, std::move(args)...);
    run();
    return answer.get();
  }

  /// The same where only a value will do; the test fails otherwise.
  template <class Result, class Handle, class... Args>
  Result ask_value(const Handle& to, Args... args) {
    auto answer = ask<Result>(to, std::move(args)...);
    if (!answer)
      throw std::runtime_error{"no value: " + to_string(answer.error())};
    return std::move(*answer);
  }

  /// Sends a message from nobody and delivers everything.
  template <class Handle, class... Args>
  void tell(const Handle& to, Args... args) {
    caf::anon_send(to, std::move(args)...);
    run();
  }

  /// Looks into a stateful actor. Prefer asking it.
  template <class State, class Handle>
  static State& state_of(const Handle& actor) {
    using base = typename Handle::template stateful_base<State>;
    return dynamic_cast<base&>(*caf::actor_cast<caf::abstract_actor*>(actor)).state;
  }

  system_config cfg;
  caf::actor_system sys;
  caf::scheduler::test_coordinator& sched;
  manual_clock clock;

private:
  static system_config& testing(system_config& config) {
    config.set("scheduler.policy", caf::atom("testing"));
    return config;
  }

  caf::actor asker_;
  std::vector<caf::strong_actor_ptr> spawned_;
};

/// The world as a fixture.
class actor_test : public ::testing::Test, public actor_world {};

} // namespace hicache::test
