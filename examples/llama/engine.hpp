#pragma once

#include "examples/llama/completion.hpp"
#include "examples/llama/peers.hpp"
#include "examples/llama/scheduler.hpp"
#include "examples/llama/transformer.hpp"
#include "hicache/handoff.hpp"
#include "hicache/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <prometheus/gauge.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace llama {

/// Receives the parts of a completion, on the engine's thread; must not block.
using completion_sink = std::function<void(const completion_output&)>;

/// A completion and who wants it.
struct submission {
  completion_request request;
  completion_sink sink;
};

using submission_ptr = std::shared_ptr<const submission>;

/// What an engine needs; all must outlive it.
struct engine_parts {
  hicache::tree_actor tree;
  transformer* model = nullptr;
  const peers* ranks = nullptr;
  scheduler_options schedule;
  /// On a prefill instance; else null.
  hicache::handoff_sender* sender = nullptr;
  /// On a decode instance; else null.
  hicache::handoff_receiver* receiver = nullptr;
  /// Memory of the sender in use.
  prometheus::Gauge* handoff_bytes = nullptr;
};

} // namespace llama

CAF_ADD_ATOM(llama, llama::atom, serve, "serve")
CAF_ADD_ATOM(llama, llama::atom, submit, "submit")
CAF_ADD_ATOM(llama, llama::atom, withdraw, "withdraw")
CAF_ADD_ATOM(llama, llama::atom, handoff, "handoff")
CAF_ADD_ATOM(llama, llama::atom, stop, "stop")
CAF_ADD_ATOM(llama, llama::atom, turn, "turn")

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(llama::engine_parts)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(llama::handoff_event)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(llama::submission_ptr)

namespace llama {

/// The ENGINE of one rank. Completions are given to rank 0.
using llama_engine = hicache::engine_actor::extend<
  // Serves completions until it is told to stop; answers then with the number of turns.
  caf::replies_to<atom::serve, engine_parts>::with<uint64_t>,
  // A completion to compute.
  caf::reacts_to<atom::submit, submission_ptr>,
  // Nobody waits for a completion any more.
  caf::reacts_to<atom::withdraw, completion_id>,
  // A prefill instance says something about a handoff.
  caf::reacts_to<atom::handoff, handoff_event>,
  // Ends all completions, on all ranks.
  caf::reacts_to<atom::stop>,
  // Begins a turn.
  caf::reacts_to<atom::turn>>;

/// @relates engine
struct engine_state : pass_watch {
  static inline constexpr auto name = "llama";

  explicit engine_state(llama_engine::pointer owner) : self(owner) {}

  // -- messages -------------------------------------------------------------------

  caf::result<uint64_t> serve(const engine_parts& given);

  void submit(const submission_ptr& wanted);

  void withdraw(completion_id unwanted);

  void stop();

  /// Wakes rank 0 if it waits for something to do.
  void wake();

  void hear(const handoff_event& event);

  // -- a turn, step by step -------------------------------------------------------

  /// What rank 0 was told since the last turn, then the look-ups.
  void begin_turn();

  void make_room();

  /// Computes a pass. Blocks.
  void compute();

  void step();

  void end_turn(const hicache::step_result& facts);

  // -- handoffs -------------------------------------------------------------------

  /// Lets receivers read prompts that have room now.
  void open_handoffs();

  void close_handoff(completion_id id);

  void tell_receiver(completion_id id, std::string message);

  void stored(uint32_t layer) override;

  void stored_everywhere(uint32_t layer) override;

  /// Goes on with completions whose KV has come to all ranks, or will not come to some.
  void receive_handoffs(const std::vector<handoff_event>& events);

  // -- internal steps -------------------------------------------------------------

  /// Applies operations and continues with their answers.
  void apply(scheduler::operations list, std::function<void(const hicache::tree_answers&)> next);

  /// Has other ranks and this one go on, or waits for something to do.
  void plan_turn();

  void give_out();

  void fail(const caf::error& why);

  // -- data -----------------------------------------------------------------------

  llama_engine::pointer self;
  engine_parts parts;
  std::optional<scheduler> schedule; // Set by serve().
  caf::typed_response_promise<uint64_t> serving;
  /// Rank 0: for the next turn.
  turn_input incoming;
  /// Rank 0: who wants the completions.
  std::map<completion_id, completion_sink> sinks;
  /// Prefill: what this pass computes for receivers.
  std::vector<scheduler::handoff> in_pass;
  /// Decode: one is complete here, and not yet on other ranks.
  bool is_ahead = false;
  /// Takes no more completions.
  bool is_stopping = false;
  bool is_waiting = false;
  /// A step may have something to tell although nothing is computed.
  bool is_in_flight = false;
  uint64_t turns = 0;
};

/// Serves completions with hicache: one such actor on each rank, all in the same turns. Each turn
/// begins with what rank 0 was asked for; everything else follows from that and from hicache's
/// answers, which are the same on all ranks. Spawn it detached: it computes, and waits for the
/// other ranks, on its own thread.
llama_engine::behavior_type engine(llama_engine::stateful_pointer<engine_state> self);

} // namespace llama
