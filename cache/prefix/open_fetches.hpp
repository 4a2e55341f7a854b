#pragma once

#include "cache/prefix/cache_settings.hpp"
#include "cache/prefix/digested_map.hpp"
#include "cache/prefix/open_requests.hpp"
#include "cache/prefix/step_facts.hpp"
#include "cache/radix/radix_tree.hpp"

#include <absl/container/btree_set.h>
#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// Prefetches from L3 between their command and the step that ends them, the deadlines of the
/// requests that wait for them, and the L2 pages that are set aside for them. Part of a
/// prefix_cache.
class open_fetches {
public:
  open_fetches(radix_tree& tree, open_requests& requests, const cache_settings& settings,
               std::vector<tree_effect>& effects);

  // -- what requests do -------------------------------------------------------

  /// Begins the request's prefetch: issues a fetch of what follows its match, or joins one that
  /// brings it.
  /// @returns the tokens looked for; 0 if it was declined.
  uint64_t begin(request_id id);

  /// The engine wants to run the request. @returns true if it waits for nothing.
  bool schedule(request_id id);

  /// The request is about to be closed. A fetch that nobody else waits for is terminated.
  void leave(request_id id);

  // -- steps ------------------------------------------------------------------

  /// Fetches that the next step may end: the order of `step_facts::fetches`. All open ones take
  /// turns.
  std::span<const fetch_id> next() const noexcept;

  /// All others, in the order of their turns.
  std::span<const fetch_id> later() const noexcept;

  /// The logical time at which the next deadline of a scheduled request expires.
  std::optional<int64_t> next_deadline_ns() const noexcept;

  /// Aborts if these facts are not those of this state.
  void check_facts(const step_facts& facts, std::span<const page_list> arrived) const;

  /// Ends fetches as a step says: what arrived enters the tree, and their requests are ready or go
  /// on with the rest of what they want.
  std::vector<ready_request> finish(const step_facts& facts, std::span<const page_list> arrived);

  /// Ends the prefetches of scheduled requests whose deadline has expired.
  void expire_fetches();

  // -- L3 comes and goes ------------------------------------------------------

  void terminate_all();

  /// Gives the prefetcher as many pages as its reserve lacks and L2 can spare.
  void fill_staging() { fill_staging({}); }

  /// L3 is attached (again), so the reserve stays.
  void keep_reserve() { is_released_ = false; }

  /// L3 is released: takes the reserve back as soon as no fetch is open.
  void release_reserve();

  // -- state ------------------------------------------------------------------

  bool empty() const noexcept { return fetches_.empty(); }

  bool is_released() const noexcept { return is_released_; }

  /// Fetches issued, pages in reserve, the fetches' own digest and turn, deadlines.
  std::array<uint64_t, 4> digest() const noexcept;

  /// The pages in reserve, ascending.
  std::vector<page_index> reserved() const;

  void check_invariants() const;

private:
  /// Outlives its requests if they are released early.
  struct open_fetch {
    fetch_id id = 0;
    /// Who waits for it, in the order in which they came; a prefix of their keys is that of `keys`.
    std::vector<request_id> requests;
    cache_namespace ns;
    std::string backend;
    uint64_t epoch = 0;
    token_buffer tokens;
    key_list keys;
    /// Pages matched when it was issued: what arrives follows on them.
    uint64_t first = 0;
    bool is_terminated = false;
  };

  /// A part [from, to) of a prefix, in pages.
  using page_range = std::pair<uint64_t, uint64_t>;

  static uint64_t digest_of(const open_fetch& fetch) noexcept;
  static uint64_t shared_end(const open_request& request, const open_fetch& fetch);
  uint64_t wanted_pages(const open_request& request) const;
  uint64_t threshold_pages() const noexcept;
  void join_or_issue(open_request& request);
  fetch_id find_to_join(const open_request& request) const;
  void index(const open_fetch& fetch);
  open_fetch take(fetch_id id);
  void terminate(fetch_id id);
  bool has_expired(const open_request& request) const noexcept;
  void finish_waiting(open_request& request, const open_fetch& fetch, const fetch_fact& fact,
                      page_range taken, std::vector<ready_request>& ready);
  page_range place(const open_fetch& fetch, uint64_t count, const page_list& arrived);
  void turn_to(fetch_id id);
  void fill_staging(std::vector<page_index> unused);
  void reclaim();

  radix_tree& tree_;
  open_requests& requests_;
  const cache_settings& settings_;
  std::vector<tree_effect>& effects_;
  digested_map<std::map<fetch_id, open_fetch>> fetches_{&digest_of};
  /// In the order of their turns: the next step may end the first ones.
  std::vector<fetch_id> order_;
  /// The fetches that bring a page, by the page's name, in issue order.
  absl::flat_hash_map<page_key, absl::InlinedVector<fetch_id, 2>, std::hash<page_key>> bringing_;
  uint64_t issued_ = 0;
  /// Deadlines by the policy `timeout`; and requests that wait to be told the time.
  absl::btree_set<std::pair<int64_t, request_id>> stop_times_;
  std::vector<request_id> untimed_;
  /// L2 pages that the prefetcher has, and which these are.
  uint64_t reserve_ = 0;
  std::vector<bool> in_reserve_;
  /// True after L3 was released, until it is attached again.
  bool is_released_ = false;
};

} // namespace hicache
