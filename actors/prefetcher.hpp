#pragma once

#include "cache/step/hit_window.hpp"
#include "cache/store/fetch_reads.hpp"
#include "cache/store/load_choice.hpp"
#include "hicache/policies.hpp"
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
  prefetch_rule when = prefetch_rule::always;
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

  void attach(const storage_actor& store);

  rank_counters count() const;

  // -- internal steps ---------------------------------------------------------

  /// A fetch, from its command until its length is agreed and its last read has returned.
  struct open_fetch {
    fetch_command command;
    tree_core_actor tree;
    fetch_reads reads;
    /// The first page of the command to read.
    uint64_t first = 0;
    /// Where the store reported the pages from there on.
    storage_hit hit;
    read_timer timer;
    /// What the ranks agreed on.
    hit_length agreed;
    /// True once this rank has offered its length, and once the ranks have agreed on one.
    bool is_known = false;
    bool is_agreed = false;
  };

  using open_fetches = std::map<fetch_id, open_fetch>;

  time_point now() const { return self->clock().now(); }

  bool is_probing() const;

  /// Looks up the pages of a fetch.
  void look_up(const fetch_command& command);

  /// Handles the store's reply to the lookup of a fetch.
  void on_hit(const fetch_command& command, const storage_hit& hit);

  /// Ends a fetch without a read.
  void decline(fetch_id id, open_fetch& fetch, miss_reason why);

  /// Offers this rank's length of a fetch, unless it has been offered.
  void offer(fetch_id id, open_fetch& fetch, const hit_length& length);

  /// Reduces the next window of hit lengths if its oldest is known.
  void agree();

  /// Reads the pages of the fetch that all ranks found and want.
  void begin(fetch_id id, const hit_length& agreed);

  /// Reads pages from number `first` of a lookup on only to measure the store, if it is time to.
  void probe(const fetch_command& command, const storage_hit& hit, uint64_t first);

  /// Takes pages from the staging pool.
  std::vector<page_index> take_pages(uint64_t count);

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
  load_estimates estimates;
  time_point next_probe{};
  /// They have the largest fetch ids.
  uint64_t probes = 0;
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
