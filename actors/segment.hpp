#pragma once

#include "cache/segment_table.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

/// Fixed settings of a segment.
struct segment_options {
  /// How the index and the readers see this member; each mount begins the next epoch.
  member_info member;
  /// The memory; slot i begins at i * slot_bytes. Must outlive the actor.
  std::span<std::byte> memory;
  /// The index to talk to now, or null if it cannot be reached. May block.
  std::function<index_actor()> index;
  /// Called when a request to that index failed.
  std::function<void(const index_actor&)> index_lost;
  /// What one request to the index may take.
  caf::timespan timeout{};
};

/// @relates segment
struct segment_state {
  static inline constexpr auto name = "segment";

  explicit segment_state(segment_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  segment_slots reserve(const segment_pages& pages);

  caf::result<atom::ok> publish(const segment_slots& slots);

  void abort(const segment_slots& slots);

  void touch(const key_list& keys);

  caf::result<atom::ok> remove(const key_list& keys);

  void tick();

  // -- internal steps ---------------------------------------------------------

  uint32_t slot_of(uint64_t offset) const;

  /// Makes the slot unreadable: whoever still reads it finds no valid header.
  void invalidate(uint32_t slot);

  /// Mounts under a new epoch and reports every published page.
  void mount();

  /// Reports published pages from slot `first` on, one batch after the other, then what was
  /// published meanwhile.
  void report(uint32_t first);

  /// Announces pages; `then` is called whatever comes of it.
  void announce(std::vector<announced_page> pages, std::function<void()> then);

  /// Tells the index what is not offered any more.
  void withdraw(std::vector<page_key> keys);

  /// Takes the index's view of this member; mounts again if the index does not know it.
  void heed(const membership& view);

  void on_index_error(const index_actor& index, const caf::error& err);

  // -- data -------------------------------------------------------------------

  segment_actor::pointer self;
  segment_options options;
  std::optional<segment_table> table; // Set once, by segment().
  /// The index this member is mounted at; null while there is none.
  index_actor index;
  bool mounting = false;
  caf::timespan heartbeat_pause{};
  /// Published while the block report was under way, perhaps behind its back.
  std::vector<announced_page> held_back;
  /// Object length of each slot, for block reports.
  std::vector<uint32_t> lengths;
};

/// Owns the slots of the memory that this rank lends to L3, and keeps the index informed. Spawn
/// detached: reaching the index again may block.
/// @pre options.member.slot_bytes > 0 and options.memory holds at least one slot
segment_actor::behavior_type segment(segment_actor::stateful_pointer<segment_state> self,
                                     segment_options options);

} // namespace hicache
