#pragma once

#include "base/clock.hpp"
#include "cache/in_order_counter.hpp"
#include "cache/op_log.hpp"
#include "cache/prefix_cache.hpp"
#include "cache/step_vector.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace hicache {

/// The actors that carry out what the tree decides.
struct tree_helpers {
  controller_actor controller;
  consensus_actor ranks;
  /// Null without L3.
  prefetcher_actor prefetcher;
  backup_actor backup;
  /// Told of failures and of cache events; may be null.
  engine_actor engine;
  /// Null: nothing is recorded.
  op_recorder_actor recorder{};
};

/// @relates tree
struct tree_state {
  static inline constexpr auto name = "tree";

  explicit tree_state(tree_actor::pointer owner) : self(owner) {}

  // -- request handling: one function per message, in interface order ---------

  caf::result<tree_answers> apply(const tree_operations& operations);

  caf::result<step_result> step(caf::timespan wait);

  void done(const operation_done& fact);

  void fetched(const fetched_pages& fact);

  void tick(uint8_t timer, uint64_t number);

  // -- internal steps ---------------------------------------------------------

  tree_answers apply_now(const tree_operations& operations);

  /// Hands the core's effects to the actors concerned, its events to the engine, and what was noted
  /// to the recorder.
  void dispatch();

  /// Notes for the recorder what was just applied.
  template <class Event>
  void note(const Event& event);

  void send_notes();

  /// A step of the core that is noted.
  std::vector<ready_request> step_core(const step_facts& facts,
                                       const std::vector<page_list>& lists);

  /// True if this rank has something to offer that the others cannot know yet.
  bool has_news() const;

  /// Enters the step's reduction with what this rank knows.
  void offer();

  /// Takes the outcome of the step's reduction; the engine may have given up on it meanwhile.
  void on_reduced(result<std::vector<int64_t>> minimum);

  /// Applies an outcome and answers the engine.
  void conclude(result<std::vector<int64_t>> minimum);

  /// Turns an agreed vector into facts.
  result<step_result> settle(const std::vector<int64_t>& minimum);

  /// The step of a rank whose tree has diverged: it goes on alone, without hits, so that the engine
  /// can finish its requests.
  step_result step_alone();

  /// Stops serving hits for good and tells the engine why.
  error distrust(ec why, const std::string& detail);

  // -- data -------------------------------------------------------------------

  /// A step from the engine's request until its answer.
  struct open_step {
    std::optional<caf::typed_response_promise<step_result>> promise;
    bool offered = false;
    /// What was offered: the fetches and this rank's pages of each.
    std::vector<page_list> arrived;
    /// The outcome, if it came after the engine was told that a rank is unresponsive.
    std::optional<result<std::vector<int64_t>>> late;
  };

  /// Operations that came while a step was open: on every rank they come after it.
  struct deferred {
    tree_operations operations;
    caf::typed_response_promise<tree_answers> promise;
  };

  tree_actor::pointer self;
  tree_helpers helpers;
  const clock_source* clock = nullptr;
  caf::timespan step_timeout{};
  std::unique_ptr<prefix_cache> core; // Set once, by tree().
  in_order_counter writes;
  in_order_counter loads;
  in_order_counter backups;
  /// Agreed so far.
  step_facts known;
  std::map<fetch_id, page_list> arrived;
  bool copy_failed = false;
  bool alone = false;
  std::optional<open_step> open;
  uint64_t step_number = 0;
  std::vector<deferred> waiting;
  /// What the recorder does not have yet, and the batches that it has not written.
  std::vector<op_log_entry> notes;
  size_t unrecorded = 0;
  rank_counters counters;
};

/// Runs the replicated state machine of one rank.
/// @param clock Must outlive the actor.
/// @param step_timeout After this long a step fails with rank_unresponsive; it can be repeated.
tree_actor::behavior_type tree(tree_actor::stateful_pointer<tree_state> self,
                               const tree_options& options, tree_helpers helpers,
                               const clock_source* clock, caf::timespan step_timeout);

} // namespace hicache
