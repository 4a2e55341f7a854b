#pragma once

#include "backends/cluster/page_reader.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace hicache {

struct replicator_options {
  page_reader_options reader;
  /// The memory of this process's segment.
  std::span<std::byte> memory;
  /// Timeout for reading one batch.
  duration timeout{};
};

/// @relates replicator
struct replicator_state {
  static inline constexpr auto name = "replicator";

  explicit replicator_state(replicator_actor::pointer owner) : self(owner) {}

  caf::result<page_totals> copy(const page_copies& pages, const segment_actor& into);

  // -- internal steps ---------------------------------------------------------

  struct filled {
    segment_slots complete;
    segment_slots failed;
    /// Pages without a slot, or that could not be read.
    std::vector<page_key> left_out;
  };

  /// Applies the pins that the pages came with, except to those left out, then replies.
  void pin(const page_copies& pages, const segment_actor& into, std::vector<page_key> left_out,
           caf::typed_response_promise<page_totals> promise);

  /// Reads pages into their reserved slots. Blocks.
  filled fill(const page_copies& pages, const segment_slots& slots);

  // -- data -------------------------------------------------------------------

  replicator_actor::pointer self;
  replicator_options options;
  std::unique_ptr<page_reader> reader;
};

/// Copies pages of other members into this process's segment, batch by batch. Spawn detached, since
/// it blocks.
replicator_actor::behavior_type
replicator(replicator_actor::stateful_pointer<replicator_state> self, replicator_options options);

} // namespace hicache
