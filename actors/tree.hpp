#pragma once

#include "actors/tree_outbox.hpp"
#include "cache/prefix/prefix_cache.hpp"
#include "cache/step/copy_health.hpp"
#include "cache/step/prefill_watch.hpp"
#include "cache/step/rank_facts.hpp"
#include "cache/step/step_machine.hpp"
#include "hicache/clock.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

namespace hicache {

/// Carries out the actions of a `step_machine` on a prefix cache.
/// @relates tree
struct tree_state {
  static inline constexpr auto name = "tree";

  explicit tree_state(tree_core_actor::pointer owner) : self(owner) {}

  // -- request handling: one function per message, in interface order ---------

  caf::result<tree_answers> apply(const tree_operations& operations);

  caf::result<step_result> step(caf::timespan wait);

  void done(const operation_done& fact);

  void fetched(const fetched_pages& fact);

  uint64_t freeze();

  caf::result<atom::ok> commit(const storage_change& change, uint64_t before);

  rank_counters count() const;

  // -- actions of the step machine --------------------------------------------

  /// Feeds an event to the step machine and carries out its actions.
  void handle(const step_machine::event& what);

  void act(const step_machine::begin& what);
  void act(const step_machine::step_locally& what);
  void act(const step_machine::step_alone& what);
  void act(const step_machine::set_wait_timer& what);
  void act(const step_machine::set_ranks_timer& what);
  void act(const step_machine::offer& what);
  void act(const step_machine::settle& what);
  void act(const step_machine::answer& what);
  void act(const step_machine::fail_step& what);
  void act(const step_machine::report_missing& what);
  void act(const step_machine::tell_engine& what);
  void act(const step_machine::replay& what);

  // -- internal steps ---------------------------------------------------------

  /// Notifies the step machine of completions that no step has turned into facts.
  void look_for_news();

  tree_answers apply_now(const tree_operations& operations);

  tree_answer apply_one(const tree_operation& operation);

  /// Measures how fast the engine computes, by an operation that succeeded.
  void watch_prefill(const tree_operation& operation);

  /// Sends what the cache has put out.
  void send() { outbox->send(*core, prefill, page_size); }

  /// Makes copies of the request's pages wait for the engine's event from now on.
  /// @returns unsupported if the device has no events.
  result<void> fence(request_id request, void* event);

  step_openings open() const;

  int64_t now_ns() const { return clock->now().time_since_epoch().count(); }

  /// Turns a reduced vector into facts.
  result<step_result> settle(const std::vector<int64_t>& minimum);

  step_result step_core(step_facts agreed);

  /// Stops serving hits and tells the engine why.
  error stop_serving(ec why, const std::string& detail);

  // -- data -------------------------------------------------------------------

  /// Operations received during a step.
  struct deferred {
    tree_operations operations;
    caf::typed_response_promise<tree_answers> promise;
  };

  /// An L3 change waiting for its step.
  struct agreed_change {
    storage_change change;
    caf::typed_response_promise<atom::ok> promise;
  };

  tree_core_actor::pointer self;
  const clock_source* clock = nullptr;
  // Set once, by tree().
  std::optional<tree_outbox> outbox;
  std::unique_ptr<prefix_cache> core;
  std::optional<step_machine> steps;
  rank_facts facts;
  copy_health health;
  prefill_watch prefill;
  uint32_t page_size = 1;
  /// The engine's pending step request. Moved out when answered, since a promise keeps its actor
  /// alive.
  caf::typed_response_promise<step_result> asking;
  std::deque<deferred> waiting;
  std::deque<agreed_change> changes;
  rank_counters counters;
};

/// Runs the replicated state machine of one rank.
/// @param clock Must outlive the actor.
/// @param step_timeout How long the other ranks have to enter a reduction. After that the step
/// fails with rank_unresponsive; it can be repeated.
tree_core_actor::behavior_type tree(tree_core_actor::stateful_pointer<tree_state> self,
                                    const tree_options& options, tree_helpers helpers,
                                    const clock_source* clock, caf::timespan step_timeout);

} // namespace hicache
