#pragma once

#include "cache/step/hit_window.hpp"
#include "cache/store/fetch_reads.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <map>
#include <vector>

namespace hicache {

struct prefetcher_options {
  /// Timeout of one storage request.
  caf::timespan timeout{};
  /// Bytes of one page on this rank, for the counters.
  uint64_t page_bytes = 0;
  storage_traffic traffic = {};
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

  /// A fetch, from its command until its length is agreed and its last read has returned.
  struct open_fetch {
    fetch_command command;
    tree_core_actor tree;
    fetch_reads reads;
    /// Where the store reported the pages.
    place_list places;
    /// Pages that every rank found.
    uint64_t found = 0;
    /// True once this rank has offered its length, and once the ranks have agreed on one.
    bool is_known = false;
    bool is_agreed = false;
  };

  using open_fetches = std::map<fetch_id, open_fetch>;

  /// Handles the store's reply to the lookup of a fetch.
  void on_hit(fetch_id id, const storage_hit& hit);

  /// Offers this rank's length of a fetch, unless it has been offered.
  void offer(fetch_id id, open_fetch& fetch, uint64_t pages);

  /// Reduces the next window of hit lengths if its oldest is known.
  void agree();

  /// Reads the `pages` pages of the fetch that all ranks found.
  void begin(fetch_id id, uint64_t pages);

  void read_more(fetch_id id, open_fetch& fetch);

  void finish_read(fetch_id id, const fetch_reads::part& part, const storage_outcome& outcome);

  /// Quarantines the pages of an expired read until its call has returned.
  void quarantine(uint64_t ticket, std::vector<page_index> pages);

  /// Reports the arrived pages to the tree and returns the rest to the staging pool.
  void answer(fetch_id id, open_fetch& fetch);

  /// Erases a fetch that has nothing in flight.
  void forget_if_done(open_fetches::iterator entry);

  /// Answers pending drains if nothing is in flight.
  void end_drain();

  // -- data -------------------------------------------------------------------

  prefetcher_actor::pointer self;
  prefetcher_options options;
  /// Null: lookups find nothing.
  storage_actor storage;
  rank_reduction_core_actor ranks;
  hit_window hits;
  open_fetches fetches;
  uint64_t queries_in_flight = 0;
  std::vector<page_index> reserve;
  /// Pages that neither the staging pool nor the tree has, since an expired call may still write to
  /// them. The tree counts them as part of the pool: its size is equal on all ranks, while each
  /// rank finds as many pages in it as its own store has left.
  uint64_t quarantined = 0;
  std::vector<caf::typed_response_promise<atom::ok>> draining;
  /// True after a failed reduction: the ranks can no longer agree, so nothing is fetched.
  bool peers_lost = false;
  rank_counters counters;
};

/// Brings pages from L3 to L2 (docs/internals.md, "One page's way").
prefetcher_actor::behavior_type
prefetcher(prefetcher_actor::stateful_pointer<prefetcher_state> self, prefetcher_options options,
           storage_actor storage, rank_reduction_core_actor ranks);

} // namespace hicache
