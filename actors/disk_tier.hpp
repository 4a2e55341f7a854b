#pragma once

#include "backends/disk_figures.hpp"
#include "backends/page_files.hpp"
#include "hicache/clock.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// Fixed settings of a disk tier.
struct disk_tier_options {
  std::shared_ptr<page_files> files;
  /// The memory of the segment. Must outlive the actor.
  std::span<std::byte> memory;
  segment_actor segment;
  /// Written here; not null.
  std::shared_ptr<disk_figures> figures;
  /// Must outlive the actor.
  const clock_source* clock = nullptr;
};

/// @relates disk_tier
struct disk_tier_state {
  static inline constexpr auto name = "disk_tier";

  explicit disk_tier_state(disk_tier_actor::pointer owner) : self(owner) {}

  caf::result<atom::ok> fetch(const page_fetch& wanted);

  void store(const segment_pages& pages);

  caf::result<atom::ok> remove(const segment_holds& unwanted);

  caf::result<atom::ok> clear(const namespace_pages& unwanted);

  caf::result<atom::ok> drain();

  void tick();

  // -- internal steps ---------------------------------------------------------

  /// Pages that one request wants.
  struct fetch_job {
    std::vector<segment_page> pages;
    size_t next = 0;
    time_point deadline;
    caf::typed_response_promise<atom::ok> promise;
  };

  using job_ptr = std::shared_ptr<fetch_job>;

  /// Has a request wait for its turn. What `begin` begins ends with end_turn().
  void enqueue(std::function<void()> begin);

  /// Sees to it that the next turn begins, unless one is under way.
  void wake();

  void end_turn();

  /// The next pages of the request that are on the disk, at most limits::disk_batch_bytes.
  /// job->next is behind them then.
  segment_pages next_on_disk(fetch_job& job);

  /// Reads some pages of the request into the segment, then the next ones; answers at the end.
  void read_next(const job_ptr& job);

  /// Reads pages into slots, and seals those that verify. Gives the others back.
  segment_slots read_into(const segment_slots& slots, uint64_t fingerprint, time_point deadline);

  /// Writes the first pages that wait, if the segment has them still.
  void write_some();

  void write_held(const segment_pages& pages, const segment_slots& held);

  /// Removes pages of a cleared namespace from one part of the folder.
  void clear_some();

  /// Whether the pages of this namespace are being removed.
  bool is_being_cleared(uint64_t fingerprint) const;

  /// Says that the disk fails, or works again, when that changes.
  void note(const result<void>& outcome);

  void show();

  // -- data -------------------------------------------------------------------

  /// A namespace, and the parts of the folder that were not looked at yet.
  struct clearing {
    uint64_t fingerprint = 0;
    std::vector<std::string> directories;
    uint64_t removed = 0;
  };

  disk_tier_actor::pointer self;
  disk_tier_options options;
  /// Requests that wait for their turn.
  std::deque<std::function<void()>> turns;
  bool is_busy = false;
  bool is_woken = false;
  /// Pages to be written, at most limits::disk_waiting_pages.
  std::deque<segment_page> waiting;
  std::deque<clearing> cleared;
  std::vector<caf::typed_response_promise<atom::ok>> drains;
  bool is_failing = false;
};

/// The disk below a segment's memory: writes what it is told of to files, and reads it back when it
/// is wanted and not in memory. One thing at a time, requests before writes, in the order in which
/// they came: so what is removed stays removed. Spawn detached, since files block.
disk_tier_actor::behavior_type disk_tier(disk_tier_actor::stateful_pointer<disk_tier_state> self,
                                         disk_tier_options options);

} // namespace hicache
