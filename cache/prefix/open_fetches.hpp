#pragma once

#include "cache/prefix/cache_settings.hpp"
#include "cache/prefix/digested_map.hpp"
#include "cache/prefix/open_requests.hpp"
#include "cache/prefix/step_facts.hpp"
#include "cache/radix/radix_tree.hpp"

#include <absl/container/btree_set.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// Prefetches from L3 between their command and the step that ends them, the deadlines of waiting
/// requests, and the staging pool: L2 pages reserved for prefetches. Part of a prefix_cache.
class open_fetches {
public:
  open_fetches(radix_tree& tree, open_requests& requests, const cache_settings& settings,
               std::vector<tree_effect>& effects);

  // -- requests ---------------------------------------------------------------

  /// Begins the request's prefetch: fetches the pages after its match, or joins a fetch of them.
  /// @returns the tokens looked for; 0 if it was declined.
  uint64_t begin(request_id id);

  /// The engine wants to run the request.
  /// @returns true if it need not wait.
  bool schedule(request_id id);

  /// The request is about to be closed. Terminates its fetch unless other requests wait for it.
  void leave(request_id id);

  // -- steps ------------------------------------------------------------------

  /// Fetches that the next step may end. Defines the order of `step_facts::fetches`. They take
  /// turns.
  std::span<const fetch_id> next() const noexcept;

  /// All other open fetches, in the order of their turns.
  std::span<const fetch_id> later() const noexcept {
    return std::span{order_}.subspan(next().size());
  }

  /// The logical time of the next deadline of a scheduled request.
  std::optional<int64_t> next_deadline_ns() const noexcept;

  /// Aborts if the facts do not match this state.
  void check_facts(const step_facts& facts, std::span<const page_list> arrived) const;

  /// Ends fetches as a step says: pages that arrived enter the tree, and the waiting requests are
  /// ready or continue with the rest of their prefetch.
  std::vector<ready_request> finish(const step_facts& facts, std::span<const page_list> arrived);

  /// Ends the prefetches of scheduled requests whose deadline has expired.
  void expire_fetches();

  // -- L3 is attached or detached ---------------------------------------------

  void terminate_all();

  /// Gives the prefetcher as many pages as the staging pool lacks and L2 can spare.
  void fill_staging() { fill_staging({}); }

  /// L3 is attached (again): keeps the staging pool.
  void keep_staging() { is_released_ = false; }

  /// L3 is released: reclaims the staging pool as soon as no fetch is open.
  void release_staging();

  // -- state ------------------------------------------------------------------

  bool empty() const noexcept { return fetches_.empty(); }

  bool is_released() const noexcept { return is_released_; }

  /// Fetches issued, size of the staging pool, the fetches' own digest with their turns, deadlines.
  std::array<uint64_t, 4> digest() const noexcept;

  /// The pages in the staging pool, ascending.
  std::vector<page_index> reserved() const;

  void check_invariants() const;

private:
  /// Outlives its requests if they are released early.
  struct open_fetch {
    fetch_id id = 0;
    /// Requests that wait for it, in order of arrival.
    std::vector<request_id> requests;
    cache_namespace ns;
    std::string backend;
    uint64_t epoch = 0;
    /// The logical time when it began.
    int64_t begun_ns = 0;
    token_buffer tokens;
    /// Pages matched when it was issued; what arrives is appended after them.
    uint64_t first = 0;
    /// Of the pages from `first` on.
    name_run names;
    bool is_terminated = false;

    uint64_t end() const noexcept { return first + names.count; }
  };

  /// The prefix that a fetch completes.
  struct prefix_entry {
    const cache_namespace* ns;
    std::span<const token_id> tokens;
    fetch_id id;

    bool begins_with(const prefix_entry& other) const noexcept;
  };

  /// By namespace, then by the bytes of the tokens: prefixes that begin alike are neighbours.
  struct prefix_order {
    bool operator()(const prefix_entry& a, const prefix_entry& b) const noexcept;
  };

  /// A part [from, to) of a prefix, in pages.
  using page_range = std::pair<uint64_t, uint64_t>;

  static uint64_t digest_of(const open_fetch& fetch) noexcept;
  uint64_t shared_end(const open_request& request, const open_fetch& fetch) const noexcept;
  uint64_t wanted_pages(const open_request& request) const;
  uint64_t threshold_pages() const noexcept;
  void join_or_issue(open_request& request);
  fetch_id find_to_join(const open_request& request) const;
  prefix_entry entry_of(const open_fetch& fetch) const noexcept;
  open_fetch take(fetch_id id);
  void terminate(fetch_id id);
  bool has_expired(const open_request& request) const noexcept;
  void finish_waiting(open_request& request, const open_fetch& fetch, const fetch_fact& fact,
                      page_range taken, std::vector<ready_request>& ready);
  page_range place(const open_fetch& fetch, uint64_t count, const page_list& arrived);
  void fill_staging(std::vector<page_index> unused);
  void reclaim();

  radix_tree& tree_;
  open_requests& requests_;
  const cache_settings& settings_;
  std::vector<tree_effect>& effects_;
  digested_map<std::map<fetch_id, open_fetch>> fetches_{&digest_of};
  /// In the order of their turns: the next step may end the first ones.
  std::vector<fetch_id> order_;
  /// One entry for each fetch: finds those that bring a page without a scan.
  absl::btree_set<prefix_entry, prefix_order> prefixes_;
  uint64_t issued_ = 0;
  /// Deadlines of the policy `timeout`, and requests whose deadline awaits a step's time.
  absl::btree_set<std::pair<int64_t, request_id>> deadlines_;
  std::vector<request_id> untimed_;
  /// Size of the staging pool, and a flag for each L2 page in it.
  uint64_t staging_ = 0;
  std::vector<bool> is_staging_;
  /// True from the release of L3 until it is attached again.
  bool is_released_ = false;
};

} // namespace hicache
