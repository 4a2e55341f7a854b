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

// Messages between an engine and a rank of hicache. In-process only: arrays are shared, and none of
// these types can be serialised.

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

/// The TREE owns the prefix cache's state. Every rank sends it the same `apply` and `step`
/// messages, in the same order.
using tree_actor = caf::typed_actor<
  // Applies the operations of a turn in order and answers each. Waits for a step in progress.
  caf::replies_to<atom::apply, tree_operations>::with<tree_answers>,
  // Turns what has completed since the last step into facts, the same on every rank. Waits up to
  // the given time for a completion. Fails with rank_unresponsive if another rank does not step in
  // time, and with ranks_diverged if the ranks hold different trees.
  caf::replies_to<atom::step, caf::timespan>::with<step_result>,
  // Counters of this rank.
  caf::replies_to<atom::counters>::with<rank_counters>>;

/// The RANK REDUCTION reduces vectors over the ranks of the instance.
using rank_reduction_actor = caf::typed_actor<
  // Answers with the element-wise minimum over all ranks once every rank has sent its vector. One
  // at a time per channel; engines use reduction_channel::engine.
  caf::replies_to<atom::reduce, reduction>::with<reduced>,
  // Ranks that have not entered the outstanding reduction of a channel (the number of a
  // reduction_channel), as human-readable text; empty if unknown.
  caf::replies_to<atom::missing, uint8_t>::with<std::string>>;

/// The ENGINE is the user's actor: it receives the runtime's unsolicited reports.
using engine_actor = caf::typed_actor<
  // A failure that does not stop the engine: L3 is unavailable, or the ranks have diverged.
  caf::reacts_to<atom::notice, caf::error>,
  // A copy or a request's prefetch has completed; the next step makes it a fact. Sent at most once
  // between two steps, so that a sleeping engine knows when to step.
  caf::reacts_to<atom::notify>,
  // Changes of what L1 and L2 can serve. Only with rank_extensions::events.
  caf::reacts_to<atom::events, cache_events_ptr>>;

} // namespace hicache
