#pragma once

#include "backends/cluster/member_figures.hpp"
#include "hicache/clock.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace hicache {

struct page_scanner_options {
  /// The memory of the segment. Must outlive the actor.
  std::span<const std::byte> memory;
  /// From the memory's label.
  uint64_t seed = 0;
  segment_actor segment;
  /// Written by the segment; not null.
  std::shared_ptr<const member_figures> figures;
  /// Must outlive the actor.
  const clock_source* clock = nullptr;
};

/// @relates page_scanner
struct page_scanner_state {
  static inline constexpr auto name = "page_scanner";

  explicit page_scanner_state(page_scanner_actor::pointer owner) : self(owner) {}

  void tick();

  // -- internal steps ---------------------------------------------------------

  /// Continues at `end` after the segment has taken the part before it.
  void pass(uint64_t end);

  // -- data -------------------------------------------------------------------

  page_scanner_actor::pointer self;
  page_scanner_options options;
  uint64_t next = 0;
  time_point started;
  time_point last_said;
};

/// Finds and verifies pages that an earlier process left in the segment's memory and has the
/// segment publish them again, part by part, while the segment serves. Ends with the last part.
/// Spawn detached, since it reads all of the memory.
/// @pre the segment expects pages and allocates no slot before it has been scanned
page_scanner_actor::behavior_type
page_scanner(page_scanner_actor::stateful_pointer<page_scanner_state> self,
             page_scanner_options options);

} // namespace hicache
