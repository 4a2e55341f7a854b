#pragma once

#include "backends/disk_figures.hpp"
#include "backends/headed_object.hpp"
#include "cache/store/disk_table.hpp"
#include "hicache/clock.hpp"
#include "hicache/storage_backend.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace hicache {

struct disk_tier_options {
  /// Its objects are pages, each behind its header. Must keep namespaces, and must not have been
  /// used yet.
  std::shared_ptr<storage_backend> store;
  /// The memory of the segment. Must outlive the actor and the store.
  std::span<std::byte> memory;
  segment_actor segment;
  /// Written by this actor, and read by the segment; not null.
  std::shared_ptr<disk_table> table;
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

  void adopt(const disk_listing& part);

  void finish(const disk_completion& completion);

  void forget(const key_batch& evicted);

  void tick();

  // -- internal steps ---------------------------------------------------------

  using outcomes = std::vector<result<void>>;

  /// A batch at the store.
  struct open_batch {
    /// The store's number for it.
    storage_backend::batch_number number = 0;
    size_t objects = 0;
    time_point deadline;
    /// Called when the deadline has passed, before `done`.
    std::function<void()> expired;
    /// Called once, when the store does not touch the memory any more.
    std::function<void(const outcomes&, bool is_late)> done;
    bool is_late = false;
  };

  struct fetch_job {
    std::vector<segment_page> pages;
    size_t next = 0;
    time_point deadline;
    caf::typed_response_promise<atom::ok> promise;
  };

  using job_ptr = std::shared_ptr<fetch_job>;

  /// Pages that are read into their slots.
  struct page_reading {
    job_ptr job;
    uint64_t fingerprint = 0;
    segment_slots slots;
    std::vector<encoded_page_header> headers;
    /// Whether the segment had no room for further pages.
    bool is_full = false;
  };

  /// A request that waits for its turn.
  struct turn {
    /// Whether nothing else may be under way meanwhile.
    bool is_alone = false;
    std::function<void()> begin;
  };

  void enqueue(bool is_alone, std::function<void()> begin);

  /// Has `tick` begin what can begin.
  void wake();

  bool may_begin(const turn& next) const;

  bool is_idle() const;

  /// Submits a batch to the store.
  /// @param submit Called with the completion of the batch; returns the store's number.
  template <class Submit>
  void submit(open_batch batch, Submit submit);

  /// Ends the wait for batches whose deadline has passed.
  void expire();

  void set_timer();

  /// Lists the pages that the store has, part by part.
  void list_from(const std::string& from);

  /// Ends a list of the store. @param failure Code `none` if it had all pages.
  void end_list(const error& failure);

  /// Goes on with a list after a pause, or begins one if the text is empty.
  void list_later(std::string from, duration pause);

  /// Removes some pages from the table that the last list lacked.
  void drop_unlisted();

  /// The next pages of the request that are on disk, at most limits::disk_batch_bytes. Advances
  /// job->next past them.
  segment_pages next_on_disk(fetch_job& job) const;

  /// Reads the request's pages into the segment batch by batch, then replies.
  void read_next(const job_ptr& job);

  void end_fetch(const job_ptr& job);

  void read_into(const job_ptr& job, const segment_slots& slots, uint64_t fingerprint);

  /// Seals the slots of pages that verify, and gives back the others.
  void end_read(const page_reading& reading, const outcomes& pages);

  /// Publishes pages that were read, and goes on with the request.
  void publish(const job_ptr& job, segment_slots complete, bool is_full);

  /// Writes the oldest queued pages that the segment still has.
  void write_some();

  void write_held(const segment_pages& pages, const segment_slots& held);

  void note_written(const std::vector<disk_page>& written, const outcomes& stored);

  /// Removes what was stored too late: it may have been removed before.
  void take_back(const std::vector<disk_page>& written, const outcomes& stored);

  void end_write();

  /// Tells the segment that the table has gained or lost these pages.
  void tell_segment(std::vector<page_key> changed);

  /// Removes pages from the store, then calls `then`.
  void remove_from_store(std::vector<page_key> keys, std::function<void()> then);

  /// Removes some pages of a cleared namespace.
  void clear_some();

  bool is_being_cleared(uint64_t fingerprint) const;

  /// Logs when the disk starts to fail or works again.
  void note(const result<void>& outcome);

  void show();

  // -- data -------------------------------------------------------------------

  /// A namespace being removed, the position from which on the table may have pages of it, and how
  /// many are removed.
  struct clearing {
    uint64_t fingerprint = 0;
    uint64_t position = 0;
    uint64_t removed = 0;
  };

  disk_tier_actor::pointer self;
  disk_tier_options options;
  bool is_listed = false;
  /// Whether the store tells all that it evicts; else it is listed again and again.
  bool tells_evictions = false;
  /// Number of the last list, and where and when it or the next one goes on.
  uint32_t listing = 0;
  std::string list_position;
  std::optional<time_point> next_list;
  /// Set after a list: the position from which on the table may have pages that it lacked.
  std::optional<uint64_t> unlisted;
  std::deque<turn> turns;
  size_t fetches = 0;
  size_t writes = 0;
  /// Whether pages are being removed for a request, or of a cleared namespace.
  bool is_removing = false;
  bool is_clearing = false;
  bool is_woken = false;
  /// Pages to write, at most limits::disk_waiting_pages.
  std::deque<segment_page> waiting;
  std::deque<clearing> cleared;
  std::vector<caf::typed_response_promise<atom::ok>> drains;
  uint64_t last_ticket = 0;
  std::map<uint64_t, open_batch> batches;
  /// Deadlines and tickets of the batches that are not late; and when the timer fires, if it is
  /// set.
  std::set<std::pair<time_point, uint64_t>> deadlines;
  std::optional<time_point> timer;
  bool is_failing = false;
};

/// The store below a segment's memory, "the disk": writes published pages to it and reads them back
/// when they are requested and not in memory. Requests go before writes. Pages are removed while
/// nothing else is under way, so they stay removed. A batch that the store does not end by its
/// deadline is not waited for any more, but keeps its slots until it ends. A page that the table
/// has and the store has not is a miss, and leaves the table. A store that does not tell all that
/// it evicts is listed again and again; that also finds what others wrote there.
disk_tier_actor::behavior_type disk_tier(disk_tier_actor::stateful_pointer<disk_tier_state> self,
                                         disk_tier_options options);

} // namespace hicache
