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

struct disk_tier_options {
  std::shared_ptr<page_files> files;
  /// The memory of the segment. Must outlive the actor.
  std::span<std::byte> memory;
  segment_actor segment;
  /// Written by this actor; not null.
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

  struct fetch_job {
    std::vector<segment_page> pages;
    size_t next = 0;
    time_point deadline;
    caf::typed_response_promise<atom::ok> promise;
  };

  using job_ptr = std::shared_ptr<fetch_job>;

  /// Queues a request. `begin` runs on its turn, which must end with end_turn().
  void enqueue(std::function<void()> begin);

  /// Schedules the next turn unless one is running.
  void wake();

  void end_turn();

  /// The next pages of the request that are on disk, at most limits::disk_batch_bytes. Advances
  /// job->next past them.
  segment_pages next_on_disk(fetch_job& job);

  /// Reads the request's pages into the segment batch by batch, then replies.
  void read_next(const job_ptr& job);

  /// Reads pages into slots, seals those that verify and returns them; aborts the others.
  segment_slots read_into(const segment_slots& slots, uint64_t fingerprint, time_point deadline);

  /// Writes the oldest queued pages that the segment still has.
  void write_some();

  void write_held(const segment_pages& pages, const segment_slots& held);

  /// Removes pages of a cleared namespace from one directory.
  void clear_some();

  bool is_being_cleared(uint64_t fingerprint) const;

  /// Logs when the disk starts to fail or works again.
  void note(const result<void>& outcome);

  void show();

  // -- data -------------------------------------------------------------------

  /// A namespace being removed, and its directories still to be scanned.
  struct clearing {
    uint64_t fingerprint = 0;
    std::vector<std::string> directories;
    uint64_t removed = 0;
  };

  disk_tier_actor::pointer self;
  disk_tier_options options;
  /// Queued requests.
  std::deque<std::function<void()>> turns;
  bool is_busy = false;
  bool is_woken = false;
  /// Pages to write, at most limits::disk_waiting_pages.
  std::deque<segment_page> waiting;
  std::deque<clearing> cleared;
  std::vector<caf::typed_response_promise<atom::ok>> drains;
  bool is_failing = false;
};

/// The disk below a segment's memory: writes published pages to files and reads them back when they
/// are requested and not in memory. Does one thing at a time, requests before writes, in order of
/// arrival, so removed pages stay removed. Spawn detached, since file I/O blocks.
disk_tier_actor::behavior_type disk_tier(disk_tier_actor::stateful_pointer<disk_tier_state> self,
                                         disk_tier_options options);

} // namespace hicache
