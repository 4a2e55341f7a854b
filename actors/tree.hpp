#pragma once

#include "base/clock.hpp"
#include "cache/oplog/op_log.hpp"
#include "cache/prefix/prefix_cache.hpp"
#include "cache/step/comparison_pace.hpp"
#include "cache/step/in_order_counter.hpp"
#include "cache/step/step_vector.hpp"
#include "gpu/device.hpp"
#include "messages/interfaces.hpp"

#include <caf/actor_clock.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
  /// Null: no router is told of cache events.
  event_publisher_actor publisher{};
  /// Where copies learn what to wait for; null where the device has no events.
  std::shared_ptr<page_fences> fences{};
};

/// @relates tree
struct tree_state {
  static inline constexpr auto name = "tree";

  explicit tree_state(tree_actor::pointer owner) : self(owner) {}

  // -- request handling: one function per message, in interface order ---------

  caf::result<tree_answers> apply(const tree_operations& operations);

  caf::result<step_result> step(caf::timespan wait);

  caf::result<uint64_t> freeze();

  caf::result<atom::ok> commit(const storage_change& change, uint64_t before);

  void unfreeze();

  void done(const operation_done& fact);

  void fetched(const fetched_pages& fact);

  void tick(uint8_t timer, uint64_t number);

  // -- internal steps ---------------------------------------------------------

  /// A step that is not frozen: begins it, or goes on with one whose reduction did not finish.
  void begin_step(caf::timespan wait, caf::typed_response_promise<step_result> promise);

  /// Applies the changes of L3 that belong before the step which begins.
  void apply_changes();

  /// Wakes up when the next prefetch is over by its policy, or after `wait`.
  caf::timespan time_to_news(caf::timespan wait) const;

  /// Something can become a fact: offers it if a step is open, else tells the engine, once.
  void on_news();

  /// The finished parts of what a step can end, as this rank knows them.
  step_facts facts_here() const;

  /// This rank's pages of each fetch that a step can end.
  std::vector<page_list> pages_here() const;

  /// What the step ended is forgotten.
  void forget_ended(const step_facts& facts);

  tree_answers apply_now(const tree_operations& operations);

  tree_answer apply_one(const tree_operation& operation);

  /// From now on copies of the request's pages wait for the engine's event.
  /// @returns unsupported if the device has no events.
  result<void> fence(request_id request, void* event);

  /// Hands the core's effects to the actors concerned, its events to the engine, and what was noted
  /// to the recorder.
  void dispatch();

  /// Notes for the recorder what was just applied.
  template <class Event>
  void note(const Event& event);

  void send_notes();

  /// Tells the engine, and routers, what the cache can serve.
  void send_events(std::vector<cache_event> list);

  /// A step of the core that is noted.
  std::vector<ready_request> step_core(const step_facts& facts,
                                       const std::vector<page_list>& lists);

  /// True if something ended on this rank that no step has made a fact yet.
  bool has_news() const;

  /// From now on the other ranks have the step's time to answer.
  void expect_ranks();

  void set_ranks_timer(caf::timespan time);

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

  /// Takes note of what the step said about copies that failed. @returns an error if no hit is
  /// served from now on, until the cache is cleared.
  result<void> weigh_failures(const step_agreement& agreed, uint64_t copies_before);

  /// The ranks' trees differ: no hit is served any more for good.
  error distrust(const std::string& detail);

  /// Stops serving hits and tells the engine why.
  error stop_serving(ec why, const std::string& detail);

  // -- data -------------------------------------------------------------------

  /// A step from the engine's request until its answer.
  struct open_step {
    std::optional<caf::typed_response_promise<step_result>> promise;
    bool offered = false;
    /// What was offered, and this rank's pages of each fetch.
    step_facts mine;
    std::vector<page_list> arrived;
    /// The outcome, if it came after the engine was told that a rank is unresponsive.
    std::optional<result<std::vector<int64_t>>> late;
  };

  /// Operations that came while a step was open: on every rank they come after it.
  struct deferred {
    tree_operations operations;
    caf::typed_response_promise<tree_answers> promise;
  };

  /// A step that waits for a change of L3 to be agreed on.
  struct held_step {
    caf::timespan wait{};
    caf::typed_response_promise<step_result> promise;
  };

  /// A change of L3 and the step before which it is applied.
  struct agreed_change {
    storage_change change;
    uint64_t before = 0;
    caf::typed_response_promise<atom::ok> promise;
  };

  tree_actor::pointer self;
  tree_helpers helpers;
  const clock_source* clock = nullptr;
  caf::timespan step_timeout{};
  std::unique_ptr<prefix_cache> core; // Set once, by tree().
  in_order_counter writes;
  in_order_counter loads;
  /// Agreed so far.
  step_facts known;
  /// Fetches and backups that ended on this rank: what arrived, and pages stored or
  /// backup_given_up; and the backups of which all ranks know the latter.
  std::map<fetch_id, fetched_pages> arrived;
  std::map<operation_id, int64_t> stored;
  std::set<operation_id> in_quarantine;
  /// Copies that failed on this rank and are no facts yet.
  std::set<operation_id> failed_writes;
  std::set<operation_id> failed_loads;
  bool device_lost = false;
  /// Agreed: copies that failed since one succeeded, and whether that ended serving.
  uint32_t failures_in_a_row = 0;
  bool is_stopped = false;
  bool alone = false;
  std::optional<open_step> open;
  /// Counts the engine's requests, and the steps of the instance that began.
  uint64_t step_number = 0;
  uint64_t steps_begun = 0;
  bool is_frozen = false;
  std::optional<held_step> held;
  std::deque<agreed_change> changes;
  comparison_pace pace;
  /// True after the engine was told of news, until its next step.
  bool has_told_news = false;
  /// When the open step has waited too long for the other ranks. One timer serves all steps, since
  /// setting one wakes the clock's thread, which costs as much as all the rest of a step.
  caf::actor_clock::time_point deadline{};
  bool is_ranks_timer_set = false;
  std::vector<deferred> waiting;
  /// What the recorder does not have yet, and the batches that it has not written.
  std::vector<op_log_entry> notes;
  size_t unrecorded = 0;
  /// Batches of cache events so far, and those that the publisher has not sent.
  uint64_t event_batches = 0;
  size_t unpublished = 0;
  rank_counters counters;
};

/// Runs the replicated state machine of one rank.
/// @param clock Must outlive the actor.
/// @param step_timeout After this long a step fails with rank_unresponsive; it can be repeated.
tree_actor::behavior_type tree(tree_actor::stateful_pointer<tree_state> self,
                               const tree_options& options, tree_helpers helpers,
                               const clock_source* clock, caf::timespan step_timeout);

} // namespace hicache
