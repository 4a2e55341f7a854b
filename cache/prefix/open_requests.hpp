#pragma once

#include "base/limits.hpp"
#include "cache/prefix/cache_settings.hpp"
#include "cache/prefix/digested_map.hpp"
#include "cache/prefix/lock_census.hpp"
#include "cache/prefix/open_pins.hpp"
#include "cache/radix/radix_tree.hpp"
#include "hicache/error.hpp"
#include "messages/commands.hpp"

#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// A request between match and release.
struct open_request {
  request_id id = 0;
  token_buffer tokens;
  /// Tokens of the match.
  uint64_t prompt_tokens = 0;
  /// Whole pages of `tokens` that may be served from the cache.
  uint64_t limit_pages = 0;
  radix_node* root = nullptr;
  /// End of the L1 part, L1-locked; the root if the part is empty.
  radix_node* l1_end = nullptr;
  /// End of the L2 part, L2-locked; null if the part is empty.
  radix_node* l2_end = nullptr;
  /// Pages of the L1 part, owned by the tree.
  uint64_t l1_pages = 0;
  uint64_t l2_pages = 0;
  /// Pages after the L1 part that the request owns.
  std::vector<page_index> owned;
  /// Tokens of its prefetch.
  token_buffer fetched_tokens;
  /// The prefetch that it waits for, or 0.
  fetch_id fetch = 0;
  bool had_fetch = false;
  /// True once the engine has scheduled it.
  bool is_scheduled = false;
  /// Deadline of its prefetch by the policy `timeout`; 0 until a step provides the time.
  int64_t deadline_ns = 0;
  bool is_past_deadline = false;
  /// Valid pages of the prefix if a load of its L1 part failed: it can only be released then.
  uint64_t valid_pages = UINT64_MAX;
  /// Tokens that its prefetch looks for.
  uint64_t wanted_tokens = 0;
  /// Pages [from, to) of the prefix that prefetches brought.
  uint64_t fetched_from = 0;
  uint64_t fetched_to = 0;

  // For its provenance.

  /// Pages loaded from L2, and the subset that was fetched from L3 for it.
  uint64_t loaded_pages = 0;
  uint64_t loaded_from_storage = 0;
  std::string storage_backend;
  /// Of the pages [fetched_from, fetched_to): as fetch_fact::from_above, and the tiers' names.
  std::array<uint64_t, limits::storage_tiers - 1> fetched_above{};
  tier_names tiers;
  /// Estimates of its last prefetch, in nanoseconds.
  int64_t load_ns = 0;
  int64_t compute_ns = 0;
  /// Pages in L1 when it first took pages to compute in; those of its inserts do not count.
  uint64_t served_pages = 0;
  bool has_computed = false;
  bool has_taken_pages = false;
  /// Pages of the prefix that L2 held or L3 was known to hold, and why not all were used.
  uint64_t known_pages = 0;
  miss_reason why = miss_reason::none;

  uint64_t matched_pages() const noexcept { return l1_pages + l2_pages; }

  bool has_failed() const noexcept { return valid_pages != UINT64_MAX; }

  /// The last node of the match.
  radix_node& end() const noexcept { return l2_end != nullptr ? *l2_end : *l1_end; }

  /// Records that pages up to `known` were available but unused.
  void miss(uint64_t known, miss_reason reason) noexcept {
    known_pages = std::max(known_pages, known);
    why = std::min(why, reason);
  }
};

/// The open requests: the part of the tree that each has matched and locked, and the pages that it
/// owns. Requests are changed through an edit (`change`), from which the functions below take their
/// reference. Part of a prefix_cache.
class open_requests {
public:
  using table = digested_map<absl::flat_hash_map<request_id, open_request>>;

  open_requests(radix_tree& tree, open_pins& pins, const cache_settings& settings);

  /// @returns unknown_id if it is not open.
  result<const open_request*> find(request_id id) const;

  bool contains(request_id id) const { return requests_.find(id) != nullptr; }

  const open_request& at(request_id id) const { return requests_.at(id); }

  /// @pre the request is open
  table::edit change(request_id id) { return requests_.change(id); }

  /// Opens a request and locks its match. @pre the number is free
  void open(const match_request& asked, request_id id);

  /// Unlocks a request's match and frees its own pages.
  void close(request_id id);

  // -- the matched part -------------------------------------------------------

  /// Sets the L1 and L2 parts to the longest match of at most `limit` pages, and moves the locks.
  void rematch(open_request& request, uint64_t limit);

  /// Moves the end of the L1 part and its lock to `end`.
  void move_l1_end(open_request& request, radix_node& end);

  /// Drops the L2 part.
  void drop_l2_part(open_request& request);

  /// Extends the L1 part by pages that other requests brought to L1 meanwhile.
  void rematch_l1(open_request& request);

  /// Pages [first, end) of the request: those of its L1 part, and then its own. `end` may be larger
  /// than their number.
  static page_list pages_of(const open_request& request, uint64_t first, uint64_t end = UINT64_MAX);

  /// Handles discarded nodes, which include the pages of a path from `valid_pages` on.
  /// @returns the requests that lost their L1 part, sorted.
  std::vector<request_id> lose_discarded(uint64_t valid_pages);

  // -- insert -----------------------------------------------------------------

  /// @returns invalid_argument if the request cannot insert these tokens.
  result<void> check_insert(const open_request& request, const insert_request& asked) const;

  /// Hands the request's own pages over to the nodes of the first `pages` pages of the tokens,
  /// creating nodes as needed.
  /// @returns the last node, and how many pages the tree already had in L1.
  std::pair<radix_node*, uint64_t> hand_over(open_request& request, const insert_request& asked,
                                             uint64_t pages);

  // -- state ------------------------------------------------------------------

  /// Where the tokens of the prompt came from so far.
  request_provenance provenance(const open_request& request) const;

  size_t size() const noexcept { return requests_.size(); }

  bool empty() const noexcept { return requests_.empty(); }

  /// Their number, and the sum of their digests.
  std::array<uint64_t, 2> digest() const noexcept { return {requests_.size(), requests_.digest()}; }

  /// Calls `visit` with each request, in unspecified order.
  template <class Visit>
  void visit(Visit visit) const {
    for (const auto& [id, request] : requests_)
      visit(request);
  }

  void count_locks(lock_census& census) const;

  void check_invariants() const;

private:
  std::vector<tier_tokens> tokens_by_tier(const open_request& request, uint64_t pages) const;

  radix_tree& tree_;
  open_pins& pins_;
  const cache_settings& settings_;
  table requests_;
};

} // namespace hicache
