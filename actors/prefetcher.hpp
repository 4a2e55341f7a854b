#pragma once

#include "cache/step/hit_window.hpp"
#include "cache/store/fetch_reads.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <map>
#include <vector>

namespace hicache {

/// Fixed settings of a prefetcher.
struct prefetcher_options {
  /// What one storage request may take.
  caf::timespan timeout{};
  /// Bytes of one page on this rank, for the counters.
  uint64_t page_bytes = 0;
};

/// @relates prefetcher
struct prefetcher_state {
  static inline constexpr auto name = "prefetcher";

  explicit prefetcher_state(prefetcher_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  void fetch(const fetch_command& command);

  void terminate(fetch_id id);

  void fill_staging(const staging_command& command);

  caf::result<atom::ok> drain();

  // -- internal steps ---------------------------------------------------------

  /// One fetch from its command until its length is agreed on and its last read returned.
  struct open_fetch {
    fetch_command command;
    tree_core_actor tree;
    fetch_reads reads;
    /// Where the store said that the pages are.
    place_list places;
    /// Pages that every rank has.
    uint64_t found = 0;
    /// True once this rank's length was offered, and once the ranks agreed on one.
    bool is_known = false;
    bool is_agreed = false;
  };

  using open_fetches = std::map<fetch_id, open_fetch>;

  /// The store answered the look-up of a fetch on this rank.
  void on_hit(fetch_id id, const storage_hit& hit);

  /// Offers this rank's length of a fetch, the first time.
  void offer(fetch_id id, open_fetch& fetch, uint64_t pages);

  /// Reduces the next window of hit lengths if its oldest is known.
  void agree();

  /// All ranks have `pages` of the fetch: reads them.
  void begin(fetch_id id, uint64_t pages);

  void read_more(fetch_id id, open_fetch& fetch);

  void finish_read(fetch_id id, const fetch_reads::part& part, const storage_outcome& outcome);

  /// Keeps the pages of a read that was given up until its call has returned.
  void quarantine(uint64_t ticket, std::vector<page_index> pages);

  /// Tells the tree what has arrived and returns the rest to the reserve.
  void answer(fetch_id id, open_fetch& fetch);

  /// Forgets a fetch of which nothing is under way any more.
  void forget_if_done(open_fetches::iterator entry);

  /// Tells who waits for it that nothing is under way any more, if so.
  void end_drain();

  // -- data -------------------------------------------------------------------

  prefetcher_actor::pointer self;
  prefetcher_options options;
  /// Null: nothing is found.
  storage_actor storage;
  rank_reduction_core_actor ranks;
  hit_window hits;
  open_fetches fetches;
  uint64_t queries_in_flight = 0;
  std::vector<page_index> reserve;
  /// Pages that are neither in the reserve nor the tree's, since a call that was given up may still
  /// write to them. The tree counts them to the reserve: its size is the same on all ranks, while
  /// each rank finds as many pages there as its own store leaves it.
  uint64_t quarantined = 0;
  std::vector<caf::typed_response_promise<atom::ok>> draining;
  /// True after a reduction failed: nothing can be agreed on any more, so nothing is fetched.
  bool peers_lost = false;
  rank_counters counters;
};

/// Brings pages from L3 to L2 (docs/internals.md, "One page's way").
prefetcher_actor::behavior_type
prefetcher(prefetcher_actor::stateful_pointer<prefetcher_state> self, prefetcher_options options,
           storage_actor storage, rank_reduction_core_actor ranks);

} // namespace hicache
