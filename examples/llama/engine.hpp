#pragma once

#include "examples/llama/completion.hpp"
#include "examples/llama/peers.hpp"
#include "examples/llama/scheduler.hpp"
#include "examples/llama/transformer.hpp"
#include "hicache/handoff.hpp"
#include "hicache/interfaces.hpp"

#include <caf/scoped_actor.hpp>

#include <prometheus/registry.h>

#include <functional>

namespace llama {

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
  /// Gets the engine's metrics.
  prometheus::Registry* registry = nullptr;
};

/// Serves completions with hicache: an engine on each rank, all in the same turns. Each turn begins
/// with what rank 0 was asked for; everything else follows from that and from hicache's answers,
/// which are the same on all ranks. Computes, and waits for the other ranks, on the calling thread.
/// @param self Gets hicache's messages to an engine_actor. On rank 0 also, from any thread:
/// - (atom::submit, completion_request, caf::actor): a completion to compute, and who gets its
///   completion_outputs;
/// - (atom::withdraw, completion_id): nobody waits for it any more;
/// - (atom::handoff, handoff_event): what a prefill instance says.
/// @param must_stop Asked on rank 0, each turn. Then all completions end, on all ranks.
/// @returns the number of turns, or an error after which hicache cannot go on
result<uint64_t> run_engine(caf::scoped_actor& self, engine_parts parts,
                            std::function<bool()> must_stop);

} // namespace llama

CAF_ADD_ATOM(llama, llama::atom, submit, "submit")
CAF_ADD_ATOM(llama, llama::atom, withdraw, "withdraw")
CAF_ADD_ATOM(llama, llama::atom, handoff, "handoff")

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(llama::completion_output)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(llama::completion_request)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(llama::handoff_event)
