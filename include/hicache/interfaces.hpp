#pragma once

#include "hicache/caf_error.hpp"
#include "hicache/events.hpp"
#include "hicache/operations.hpp"

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/error.hpp>
#include <caf/replies_to.hpp>
#include <caf/timespan.hpp>
#include <caf/type_id.hpp>
#include <caf/typed_actor.hpp>

#include <cstdint>
#include <string>

// The messages between an engine and a rank of hicache. They stay in the process: arrays are
// shared, and none of these types can be serialised.

// -- verbs --------------------------------------------------------------------

CAF_ADD_ATOM(hicache, hicache::atom, apply, "apply")
CAF_ADD_ATOM(hicache, hicache::atom, counters, "counters")
CAF_ADD_ATOM(hicache, hicache::atom, events, "events")
CAF_ADD_ATOM(hicache, hicache::atom, missing, "missing")
CAF_ADD_ATOM(hicache, hicache::atom, notify, "notify")
CAF_ADD_ATOM(hicache, hicache::atom, notice, "notice")
CAF_ADD_ATOM(hicache, hicache::atom, reduce, "reduce")
CAF_ADD_ATOM(hicache, hicache::atom, step, "step")

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::cache_events_ptr)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::rank_counters)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::reduced)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::reduction)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::step_result)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::tree_answers)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(hicache::tree_operations)

namespace hicache {

/// The TREE owns what is cached where. Every rank sends it the same `apply` and `step` messages, in
/// the same order.
using tree_actor = caf::typed_actor<
  // Applies the operations of one turn of the engine, in order, and answers each. While a step is
  // open it waits for the step to end.
  caf::replies_to<atom::apply, tree_operations>::with<tree_answers>,
  // Turns what completed since the last step into facts, the same on every rank. Waits up to the
  // given time for a completion. Fails with rank_unresponsive if another rank does not step in
  // time, and with ranks_diverged if the ranks hold different trees.
  caf::replies_to<atom::step, caf::timespan>::with<step_result>,
  // What this rank did so far.
  caf::replies_to<atom::counters>::with<rank_counters>>;

/// The CONSENSUS reduces vectors over the ranks of the instance.
using rank_reduction_actor = caf::typed_actor<
  // Answers the element-wise minimum over all ranks, once every rank has sent its vector. One at a
  // time per channel; an engine uses reduction_channel::engine.
  caf::replies_to<atom::reduce, reduction>::with<reduced>,
  // Which ranks have not entered the outstanding reduction of a channel (the number of a
  // reduction_channel), as a text for people; empty where that is not known.
  caf::replies_to<atom::missing, uint8_t>::with<std::string>>;

/// The ENGINE is the user's actor: it receives what the runtime reports unasked.
using engine_actor = caf::typed_actor<
  // Something failed, and the engine can go on: L3 is unavailable, or the ranks have diverged.
  caf::reacts_to<atom::notice, caf::error>,
  // A copy or the prefetch of a request completed; the next step makes it a fact. At most once
  // between two steps, so that an engine that sleeps knows when to step.
  caf::reacts_to<atom::notify>,
  // Pages can be served from L1 or L2 from now on, or no longer. Only with rank_extensions::events.
  caf::reacts_to<atom::events, cache_events_ptr>>;

} // namespace hicache
