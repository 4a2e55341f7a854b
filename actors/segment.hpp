#pragma once

#include "backends/index_link.hpp"
#include "cache/segment_table.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <functional>
#include <map>
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
  /// The shards of the index as they can be reached now.
  std::function<index_view_ptr()> index;
  /// Called when a request to a shard failed.
  std::function<void(const index_actor&)> index_lost;
  /// Called with the digest of the shard map that an answer names.
  std::function<void(uint64_t)> index_heard;
  /// What one request to a shard may take.
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

  /// Takes the shards as they are now: mounts where this member is not mounted yet.
  void look_at_index();

  /// Other shards keep the keys from now on: tells those that are not asked any more, and those
  /// that are.
  void reshard(const std::vector<uint32_t>& now);

  /// Positions of the pages by the number of the shard that keeps them.
  template <class Page>
  std::map<uint32_t, std::vector<Page>> by_shard(const std::vector<Page>& pages) const;

  /// Mounts at a shard under a new epoch and reports every published page that it keeps.
  void mount(uint32_t number, const index_actor& shard);

  /// Reports the published pages that a shard keeps, from slot `first` on, one batch after the
  /// other; then what was published meanwhile.
  void report(uint32_t number, uint32_t first);

  /// Announces pages to a shard; `then` is called whatever comes of it.
  void announce(uint32_t number, std::vector<announced_page> pages, std::function<void()> then);

  /// Tells the index what is not offered any more.
  void withdraw(const std::vector<page_key>& keys);

  void withdraw_from(uint32_t number, std::vector<page_key> keys);

  /// Takes a shard's view of this member; mounts again if the shard does not know it.
  void heed(uint32_t number, const membership& view);

  void on_index_error(uint32_t number, const index_actor& shard, const caf::error& err);

  // -- data -------------------------------------------------------------------

  /// This member at one shard of the index.
  struct mounting {
    /// Null while there is none.
    index_actor shard;
    uint64_t epoch = 0;
    /// A block report is under way.
    bool is_reporting = false;
    /// Published while it was, perhaps behind its back.
    std::vector<announced_page> held_back;
  };

  segment_actor::pointer self;
  segment_options options;
  std::optional<segment_table> table; // Set once, by segment().
  /// By number.
  std::map<uint32_t, mounting> mounts;
  /// The keys of `mounts`.
  std::vector<uint32_t> numbers;
  caf::timespan heartbeat_pause{};
  /// Object length of each slot, for block reports.
  std::vector<uint32_t> lengths;
};

/// Owns the slots of the memory that this rank lends to L3, and keeps the index informed. Spawn
/// detached: a block report of many pages would hold up the rank's other actors.
/// @pre options.member.slot_bytes > 0 and options.memory holds at least one slot
segment_actor::behavior_type segment(segment_actor::stateful_pointer<segment_state> self,
                                     segment_options options);

} // namespace hicache
