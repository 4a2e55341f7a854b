#pragma once

#include "actors/offered_pages.hpp"
#include "actors/segment_mounts.hpp"
#include "actors/segment_repair.hpp"
#include "actors/spreader.hpp"
#include "backends/cluster/exported_pages.hpp"
#include "backends/cluster/lasting_memory.hpp"
#include "backends/cluster/member_figures.hpp"
#include "base/limits.hpp"
#include "cache/store/disk_table.hpp"
#include "cache/store/segment_table.hpp"
#include "cache/store/unwanted_pages.hpp"
#include "hicache/clock.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

struct segment_options {
  segment_mounts_options mounts;
  /// The member's memory; the segment is its part before the headers of exported pages, if there
  /// are any. Must outlive the actor.
  std::span<std::byte> memory;
  segment_policy policy;
  /// Set if the memory outlives the process.
  std::optional<lasting_memory> lasting;
  /// Pages of L2 that are offered as well; null if there are none. Must be open, with a notice that
  /// sends revoked pages to this actor as atom::withdraw.
  std::shared_ptr<exported_pages> exported;
  /// The pages on the disk below the memory, kept by the disk tier; null if there is none.
  std::shared_ptr<const disk_table> on_disk;
  /// Copies pages of other members into the memory; null if this member copies nothing.
  replicator_actor replicator;
  /// Copies wanted of each exported page.
  uint8_t copies = 1;
  repair_policy repair;
  /// Written by this actor and reported to the index; not null.
  std::shared_ptr<member_figures> figures;
  /// Must outlive the actor.
  const clock_source* clock = nullptr;
};

/// @relates segment
struct segment_state {
  static inline constexpr auto name = "segment";

  explicit segment_state(segment_actor::pointer owner) : self(owner) {}

  // -- requests of this process -----------------------------------------------

  caf::result<atom::ok> mount();

  segment_slots reserve(const segment_pages& pages);

  caf::result<key_batch> publish(const segment_slots& slots);

  void abort(const segment_slots& slots);

  void withdraw(const segment_slots& reclaimed);

  segment_slots hold(const segment_holds& wanted);

  void release(const segment_slots& slots);

  caf::result<atom::ok> remove(const key_list& keys);

  caf::result<atom::ok> adopt(const found_pages& part);

  void drop(const segment_holds& unwanted);

  void note_disk(const key_batch& changed);

  caf::result<atom::ok> leave();

  void tick();

  // -- requests of other members and of operators -----------------------------

  caf::result<page_totals> copy(const page_copies& pages);

  page_totals pin(const page_pins& wanted);

  caf::result<page_totals> clear(const namespace_pages& wanted);

  caf::result<drain_report> drain(const drain_request& how);

  drain_progress progress() const;

  drain_progress resume();

  void touch(const key_batch& used);

  void check(const key_batch& doubtful);

  caf::result<placements> recall(const page_recall& wanted);

  // -- internal steps ---------------------------------------------------------

  /// Adds an exported page. @returns false if it has been revoked or the segment has the page
  bool export_page(const segment_slot& slot);

  /// Revokes a page if it is exported. @returns the page
  std::optional<stored_page> revoke(const page_key& key);

  /// Whether a published page's bytes no longer match its checksum.
  bool is_damaged(const stored_page& page) const;

  /// Marks a published page so that the next process finds it, if the memory outlives this one.
  void keep(const page_key& key);

  /// Adds a page that an earlier process left. @returns whether it is offered
  bool adopt(const found_page& found);

  /// Withdraws pages that have left memory, or announces them on disk.
  void tell_gone(const std::vector<page_key>& keys);

  /// The places in memory of pages of a namespace.
  placements places_of(const page_recall& wanted) const;

  /// Frees published pages and clears their headers.
  page_totals let_go(const std::vector<page_key>& keys);

  /// Withdraws all pages, in memory and on disk. @returns how many
  uint64_t let_all_go();

  /// Ends offering pages on disk.
  void withdraw_disk();

  /// Called when the spreader has ended: withdraws everything unless that would lose pinned pages.
  void end_drain(const page_totals& spread);

  void answer_drain(const result<drain_report>& end);

  caf::timespan tick_pause() const;

  member_counters counters() const;

  /// Updates the published figures.
  void show();

  // -- data -------------------------------------------------------------------

  segment_actor::pointer self;
  segment_options options;
  struct draining {
    bool is_forced = false;
    spreader_actor spreader;
    std::shared_ptr<spread_figures> figures = std::make_shared<spread_figures>();
    std::vector<caf::typed_response_promise<drain_report>> waiting;
  };

  // Set once, by segment().
  std::optional<segment_table> table;
  std::optional<offered_pages> offered;
  std::optional<segment_mounts> mounts;
  std::optional<segment_repair> repair;
  time_point next_heartbeat;
  std::optional<draining> drain_;
  /// Pages left by an earlier process that must not be adopted.
  unwanted_pages unwanted{limits::unwanted_pages};
  /// Pages that clients of an earlier process may still read in place, until held_until.
  segment_slots held_before;
  /// May be null.
  disk_tier_actor disk;
  time_point held_until;
  /// Published pages found damaged in memory.
  uint64_t corrupt = 0;
};

/// Owns the memory that this process exports to L3: decides placement and eviction and keeps the
/// index informed. For pages exported from L2 it only tracks which are offered; L2 decides their
/// fate. Spawn detached: a block report of many pages would delay other actors.
/// @pre options.memory is not empty; options.mounts.member describes the objects of
/// options.exported
segment_actor::behavior_type segment(segment_actor::stateful_pointer<segment_state> self,
                                     segment_options options);

} // namespace hicache
