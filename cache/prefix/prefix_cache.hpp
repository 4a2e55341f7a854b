#pragma once

#include "cache/prefix/cache_event.hpp"
#include "cache/prefix/cache_settings.hpp"
#include "cache/prefix/handle_locks.hpp"
#include "cache/prefix/open_backups.hpp"
#include "cache/prefix/open_copies.hpp"
#include "cache/prefix/open_fetches.hpp"
#include "cache/prefix/open_pins.hpp"
#include "cache/prefix/open_requests.hpp"
#include "cache/prefix/open_sessions.hpp"
#include "cache/prefix/step_facts.hpp"
#include "cache/prefix/tree_options.hpp"
#include "cache/radix/radix_tree.hpp"
#include "messages/commands.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace hicache {

/// Counts for operators and metrics, in pages unless the name says otherwise.
struct tree_stats {
  uint64_t nodes = 0;
  uint64_t l1_free = 0;
  /// L1 pages in the tree that eviction may take, and those that locks protect.
  uint64_t l1_evictable = 0;
  uint64_t l1_protected = 0;
  uint64_t l2_free = 0;
  uint64_t l2_used = 0;
  uint64_t evicted_l1 = 0;
  uint64_t evicted_l2 = 0;
  /// L2 pages of abandoned backups that a store call may still read.
  uint64_t quarantined = 0;
  uint64_t pinned = 0;
  uint64_t requests_open = 0;
};

/// Sizes of an open request, in tokens.
struct request_extent {
  /// Of its pages in L1 that the tree owns.
  uint64_t l1_tokens = 0;
  /// Of its match.
  uint64_t prompt_tokens = 0;
};

/// One node for display (`hicachectl oplog run`, op "tree").
struct node_view {
  node_id id = 0;
  /// 0 below the root of a namespace.
  node_id parent = 0;
  cache_namespace ns;
  std::vector<token_id> tokens;
  bool in_l1 = false;
  bool in_l2 = false;
  bool in_storage = false;
  uint32_t l1_locks = 0;
  uint32_t l2_locks = 0;
  uint32_t pins = 0;
  node_use use;
};

/// Which tokens are cached in which pages of L1 and L2, which requests use them, and what is in
/// flight between the tiers. A replicated state machine: its state is a function of the applied
/// operations, so equal operations give equal states on every rank (docs/internals.md). Recency is
/// an operation counter; no decision depends on a clock, an address or hash order.
///
/// Made of parts, each of which owns its state, its share of the digest and its invariants; this
/// class carries out operations on them.
///
/// Without `tree_options::share_prefixes` a match finds nothing, and a request keeps its own pages,
/// which release frees. Then there are no nodes, L2 and L3 are unused, pins pin 0 tokens, and
/// eviction frees nothing.
///
/// Not thread-safe: owned by the tree actor. Failed operations change nothing.
class prefix_cache {
public:
  explicit prefix_cache(const tree_options& options);

  prefix_cache(const prefix_cache&) = delete;

  prefix_cache& operator=(const prefix_cache&) = delete;

  // -- operations of a request ------------------------------------------------

  /// Opens a request and locks its match in L1 and L2 until release. The match ends at a page
  /// boundary not beyond `limit`; a partially matched node is split. Refreshes the recency of the
  /// path; does not count as a hit.
  /// @returns invalid_argument if the request is already open or the limit exceeds the tokens;
  /// unknown_id if its session is not open (any more).
  result<match_result> match(const match_request& request);

  /// Starts a prefetch from L3 of the pages that follow the match; at most one per request. Waits
  /// for another request's prefetch that already brings them, and then fetches the rest.
  result<prefetch_result> prefetch(request_id request);

  /// Ends the request's prefetch by policy. A request without a prefetch is ready at once.
  result<schedule_result> schedule(request_id request);

  /// Loads the request's L2 part to L1: takes L1 pages (evicting if needed) and begins the copy.
  /// Skips an L2 part below the threshold, above the quota or without room: then loading_tokens is
  /// 0 and the request continues with its L1 part. The target pages stay locked until a step
  /// confirms the copy. Can fail with out_of_device_pages like allocate.
  result<load_result> load_back(const load_request& request);

  /// Takes L1 pages for tokens [l1_tokens, tokens) of the request, evicting if needed; the last
  /// page may be partial. Pages that the request already has count. All or nothing.
  /// @returns out_of_device_pages, without evicting anything, if even eviction could not make room.
  /// If pages must first be written to L2, the error says so; then the same call succeeds after one
  /// step per node of a path that has to leave.
  result<allocate_result> allocate(const allocate_request& request);

  /// Enters the request's whole pages into the tree, which takes ownership of those it lacks;
  /// duplicates are freed and replaced. Nodes that are only in L2 adopt the L1 pages. Unless
  /// `chunked`, counts a hit along the path and then starts the writes to L2 that the write policy
  /// asks for, parents first. The request's lock moves to the end of the inserted path. Tokens must
  /// begin with the tokens of the match.
  result<insert_result> insert(const insert_request& request);

  /// Closes a request: unlocks its match and frees its own pages. Terminates its prefetch unless
  /// other requests wait for it; arrived pages enter the tree at the step that ends it.
  result<void> release(request_id request);

  /// The cached and own pages of an open request; null if it is not open.
  page_list pages_of(request_id request) const;

  /// How much of an open request there is; zeros if it is not open.
  request_extent extent(request_id request) const;

  /// Where the tokens of an open request came from so far.
  result<request_provenance> provenance(request_id request) const;

  // -- operations without a request -------------------------------------------

  /// Frees pages of a tier in eviction order, each victim from its tail; fewer if there are not
  /// enough.
  result<evict_result> evict(const evict_request& request);

  /// The ttl starts at the next step, since only steps provide the time: a pin ends at the first
  /// step whose time is that much later.
  /// @returns limit_reached, without pinning anything, if it exceeds the tenant's budget.
  result<pin_result> pin(const pin_request& request);

  result<pin_result> unpin(const unpin_request& request);

  /// @returns invalid_argument if it is already open; limit_reached.
  result<session_result> open_session(const open_session_request& request);

  /// @returns unknown_id if this generation is not open; invalid_argument if it has an open
  /// request.
  result<session_result> close_session(const close_session_request& request);

  // -- operations on a node ---------------------------------------------------

  // A node's id stays valid while any page of the node is cached: a split leaves it with the lower
  // part, so that it names the same prefix. After the last page is evicted it is unknown_id
  // forever.

  result<lock_result> lock(node_id id) {
    return handle_locks_.lock(id).map([this] { return lock_sizes(); });
  }

  result<lock_result> unlock(node_id id) {
    return handle_locks_.unlock(id).map([this] { return lock_sizes(); });
  }

  /// All or nothing. @returns out_of_host_pages if L2 has no room, evicting nothing.
  result<backup_result> backup(node_id node);

  /// Begins nothing (0 tokens) below the threshold, above the quota or without room. Can fail with
  /// out_of_device_pages like allocate.
  result<load_node_result> load_node(const load_node_request& request);

  /// A soft reference to the prefix that ends with `node`: referenced pages are evicted last. If
  /// the end is evicted, the reference moves to the remaining prefix.
  /// @returns its number.
  result<uint64_t> refer(node_id node);

  void drop_reference(uint64_t reference) { tree_.drop_reference(reference); }

  result<void> clear();

  // -- steps ------------------------------------------------------------------

  /// True if anything is outstanding that a step can complete. Excludes quarantined pages
  /// (tree_stats::quarantined), whose end is unpredictable. Equal on all ranks.
  bool in_flight() const noexcept;

  /// Backups that the next step may end, oldest first, at most limits::step_backups. Defines the
  /// order of `step_facts::backups`.
  std::span<const operation_id> backing_up() const noexcept { return backups_.next(); }

  /// True while anything is pinned, so that steps must provide the time. Equal on all ranks.
  bool has_pins() const noexcept { return !pins_.empty(); }

  /// Prefetches that the next step may end, at most limits::step_fetches. Defines the order of
  /// `step_facts::fetches`. Open prefetches take turns.
  std::span<const fetch_id> fetching() const noexcept { return fetches_.next(); }

  /// All other open prefetches, in the order of their turns.
  std::span<const fetch_id> fetching_later() const noexcept { return fetches_.later(); }

  /// The logical time of the next prefetch deadline of a scheduled request.
  std::optional<int64_t> next_deadline_ns() const noexcept { return fetches_.next_deadline_ns(); }

  /// Applies what all ranks agreed on, ends expired pins and runs background eviction. Pages whose
  /// write failed stay in L1 only. Pages whose load failed leave the cache on both tiers, with
  /// everything below them, which may have been computed from them.
  /// @param arrived This rank's L2 pages of each element of fetching(), in its order; an element
  /// with arrived == -1 is ignored. Pages beyond the agreed length return to the staging pool.
  /// @returns the requests whose prefetch ended, in the order in which the prefetches were issued.
  std::vector<ready_request> step(const step_facts& facts, std::span<const page_list> arrived);

  /// Open requests, by number, that lost their L1 part in the last step because a load failed.
  /// Their results are invalid and are not inserted. They keep their pages until release; a match
  /// after that finds the valid prefix. Valid until the next step.
  std::span<const request_id> failed() const noexcept { return failed_; }

  /// Takes the pending effects, in order.
  std::vector<tree_effect> take_effects() { return std::exchange(effects_, {}); }

  /// Takes the cache events since the last call (name_events); none unless the options ask for
  /// them.
  std::vector<cache_change> take_changes() { return tree_.take_changes(); }

  // -- state ------------------------------------------------------------------

  /// Attaches or detaches L3. Attaching names all pages without a name, and cancels a `detach` that
  /// was not followed by a `release`.
  void change_storage(const storage_change& change);

  /// From now on, until a clear, match answers 0, prefetches are declined and nothing is inserted:
  /// the ranks have diverged, or a GPU device cannot copy.
  void stop_serving() noexcept { settings_.is_stopped = true; }

  /// Hash of the whole state except L2 page numbers, which may differ between ranks (reads use the
  /// staging pool in arrival order). Maintained incrementally; O(1).
  uint64_t digest() const noexcept;

  tree_stats stats() const noexcept;

  /// All nodes, parents before children, siblings by id.
  std::vector<node_view> nodes() const;

  /// Walks everything and aborts (HICACHE_CHECK) on a violated invariant. For tests. O(pages).
  void check_invariants() const;

private:
  // -- requests ---------------------------------------------------------------

  /// Finds an open request by the engine's number.
  result<const open_request*> find(request_id request) const;
  result<void> check_match(const match_request& asked, const session_state* session) const;
  match_result open(const match_request& asked, request_id id);
  match_result match_turn(const match_request& asked, const session_state& session);
  void close(request_id id);
  /// Closes the request that a streaming session keeps open.
  void give_up_slot(const session_state& session);
  result<load_result> load_host_part(request_id id, const load_request& asked);
  insert_result insert_pages(request_id id, const insert_request& asked);
  void copy_inserted(radix_node& end);
  uint64_t retain(radix_node& end, std::chrono::nanoseconds ttl);
  error no_l1_pages(std::string what, uint64_t pages) const;

  // -- steps ------------------------------------------------------------------

  void discard(radix_node& top);
  void lose(request_id request);
  void evict_in_background();

  // -- state ------------------------------------------------------------------

  uint64_t tokens(uint64_t pages) const noexcept { return settings_.tokens(pages); }
  lock_result lock_sizes() const;
  uint64_t unshared_digest() const noexcept;
  uint64_t shared_digest() const noexcept;
  void check_locks() const;
  void check_pages() const;

  cache_settings settings_;
  radix_tree tree_;
  std::vector<tree_effect> effects_;

  // Each part knows only the parts above it.

  open_backups backups_;
  open_copies copies_;
  open_pins pins_;
  handle_locks handle_locks_;
  open_requests requests_;
  open_fetches fetches_;
  open_sessions sessions_;

  /// Requests that the last step lost, by internal number and by the engine's number.
  std::vector<request_id> lost_;
  std::vector<request_id> failed_;
};

/// Applies any operation.
/// @relates prefix_cache
tree_answer apply(prefix_cache& cache, const tree_operation& operation);

} // namespace hicache
