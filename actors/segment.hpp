#pragma once

#include "actors/offered_pages.hpp"
#include "actors/segment_mounts.hpp"
#include "actors/spreader.hpp"
#include "backends/cluster/exported_pages.hpp"
#include "backends/cluster/lasting_memory.hpp"
#include "backends/cluster/member_figures.hpp"
#include "base/limits.hpp"
#include "cache/store/repair_queue.hpp"
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

/// Fixed settings of a segment.
struct segment_options {
  segment_mounts_options mounts;
  /// The member's memory: the segment, up to the headers of exported pages if there are any. Must
  /// outlive the actor.
  std::span<std::byte> memory;
  segment_policy policy;
  /// The memory outlives the process.
  std::optional<lasting_memory> lasting;
  /// Pages of L2 that are offered as well; null if there are none. Open, and told of by
  /// atom::withdraw what was taken back.
  std::shared_ptr<exported_pages> exported;
  /// Reads pages of other members into the memory; null if nothing shall be copied here.
  replicator_actor replicator;
  /// Copies that there shall be of each page that is exported.
  uint8_t copies = 1;
  /// Written here, and told to the index; not null.
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

  caf::result<atom::ok> leave();

  void tick();

  // -- requests of other members, and of people -------------------------------

  caf::result<page_totals> copy(const page_copies& pages);

  page_totals pin(const page_pins& wanted);

  caf::result<page_totals> clear(const namespace_pages& wanted);

  caf::result<drain_report> drain(const drain_request& how);

  drain_progress progress() const;

  drain_progress resume();

  void touch(const key_batch& used);

  void check(const key_batch& doubtful);

  // -- internal steps ---------------------------------------------------------

  /// Enters a page that is exported. @returns false if it is not any more, or offered from the
  /// segment
  bool export_page(const segment_slot& slot);

  /// Ends the exporting of a page, if it is exported. @returns what it was
  std::optional<stored_page> revoke(const page_key& key);

  /// Whether a published page is not what was written.
  bool is_damaged(const stored_page& page) const;

  /// Has the next process find a published page, if the memory outlives this one.
  void keep(const page_key& key);

  /// Enters a page that an earlier process left. @returns whether it is offered
  bool adopt(const found_page& found);

  /// Frees published pages, makes them unreadable and withdraws them.
  page_totals let_go(const std::vector<page_key>& keys);

  /// Frees and withdraws everything.
  page_totals let_all_go();

  /// Pages of this member that others shall have, as it would have them copied.
  spreader_options spread_settings() const;

  /// The spreader has ended: withdraws everything, unless pinned pages would be gone with that.
  void end_drain(const page_totals& spread);

  void answer_drain(const result<drain_report>& end);

  /// Notes pages whose copies elsewhere are lost.
  void note_losses(const std::vector<page_key>& keys);

  /// Has lost copies made anew if it is time to.
  void repair();

  /// What was tried has ended.
  void end_repair(const std::vector<page_key>& tried, const std::vector<page_key>& lacking);

  /// A page as others are asked to copy it, if it shall have more than one copy.
  std::optional<copied_page> replicated(const page_key& key, time_point now) const;

  caf::timespan tick_pause() const;

  member_counters counters() const;

  /// Shows others how full the segment is.
  void show();

  // -- data -------------------------------------------------------------------

  segment_actor::pointer self;
  segment_options options;
  /// Being drained.
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
  time_point next_heartbeat;
  std::optional<draining> drain_;
  /// Pages whose copies elsewhere are lost.
  repair_queue losses;
  bool is_repairing = false;
  /// Pages of an earlier process that shall not be adopted.
  unwanted_pages unwanted{limits::unwanted_pages};
  /// Pages that clients of an earlier process may still read in place, and until when.
  segment_slots held_before;
  /// Null if there is none.
  disk_tier_actor disk;
  time_point held_until;
  /// Pages whose bytes in memory turned out damaged.
  uint64_t corrupt = 0;
};

/// Owns the memory that this rank exports to L3: which page is where and who has to go; keeps the
/// index informed. Of pages exported from L2 it knows which are offered; what becomes of them, L2
/// decides. Spawn detached: a block report of many pages would hold up the rank's other actors.
/// @pre options.memory is not empty; options.mounts.member says which objects options.exported has
segment_actor::behavior_type segment(segment_actor::stateful_pointer<segment_state> self,
                                     segment_options options);

} // namespace hicache
