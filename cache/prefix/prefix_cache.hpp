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
#include <vector>

namespace hicache {

/// Counts for people and metrics. Pages, unless the name says otherwise.
struct tree_stats {
  uint64_t nodes = 0;
  uint64_t l1_free = 0;
  /// Device pages in the tree that eviction may take / may not take because of locks.
  uint64_t l1_evictable = 0;
  uint64_t l1_protected = 0;
  uint64_t l2_free = 0;
  uint64_t l2_used = 0;
  uint64_t evicted_l1 = 0;
  uint64_t evicted_l2 = 0;
  /// L2 pages of backups that were given up, which a store's call may still read.
  uint64_t quarantined = 0;
  uint64_t pinned = 0;
  uint64_t requests_open = 0;
};

/// One node as people see it (`hicachectl oplog run`, op "tree").
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

/// Which tokens are cached in which pages of L1 and L2, who uses them, and what is on its way
/// between the tiers. A replicated state machine: its state is a function of the operations
/// applied, so equal operations give equal states on every rank (docs/internals.md). Recency is an
/// operation counter; no clock, address or hash order decides anything.
///
/// Made of parts, each of which owns its state, its share of the digest and its invariants; this
/// class carries out operations on them.
///
/// Without `tree_options::share_prefixes` a match finds nothing, a request's pages stay its own,
/// and release frees them. Then no node exists, L2 and L3 are not used, pins pin 0 tokens, and
/// eviction frees nothing.
///
/// Not thread-safe: the tree actor owns it. Operations that fail change nothing.
class prefix_cache {
public:
  explicit prefix_cache(const tree_options& options);

  prefix_cache(const prefix_cache&) = delete;

  prefix_cache& operator=(const prefix_cache&) = delete;

  // -- operations of a request ------------------------------------------------

  /// Opens a request and locks what it matched, on device and host, until release. The match ends
  /// at a page boundary not beyond `limit`; a node that is matched in part is split. Refreshes the
  /// recency of the path; is no hit.
  /// @returns invalid_argument if the request is open already or the limit exceeds the tokens;
  /// unknown_id if its session is not open (any more).
  result<match_result> match(const match_request& request);

  /// Starts looking in L3 for the pages that follow the match. At most one prefetch per request.
  /// A request that wants pages which another's prefetch is bringing waits for that one, and then
  /// goes on with the rest of its own.
  result<prefetch_result> prefetch(request_id request);

  /// Ends the request's prefetch by policy. Without a prefetch the request is ready at once.
  result<schedule_result> schedule(request_id request);

  /// Brings the request's host part to the device: takes device pages (evicting if needed) and
  /// begins the copy. A host part below the threshold or above the quota, or for which there is no
  /// room, is left alone: then loading_tokens is 0 and the request goes on with its device part.
  /// The copied-to pages stay locked until the copy is a fact. It can be out_of_device_pages, as
  /// allocate.
  result<load_result> load_back(const load_request& request);

  /// Takes device pages for tokens [l1_tokens, tokens) of the request, evicting if needed; the
  /// last page may be partial. Pages that the request has already count. All or nothing.
  /// @returns out_of_device_pages without evicting anything if even eviction could not make room.
  /// Pages may have to be written to L2 first; then the error says so, and the same call succeeds
  /// after a step for each node of a path that has to go.
  result<allocate_result> allocate(const allocate_request& request);

  /// Enters the request's whole pages into the tree. Pages that the tree lacks become the tree's;
  /// duplicates are freed and replaced. Nodes that exist on the host only adopt the device pages.
  /// Counts a hit along the path and then starts to write what the write policy wants in L2,
  /// parents first; neither if `chunked`. The request's lock moves to the end of what was inserted.
  /// Tokens must begin with the tokens of the match.
  result<insert_result> insert(const insert_request& request);

  /// Closes a request: unlocks, and frees the pages that the tree did not take. A prefetch that
  /// nobody else waits for is terminated, and what arrived is kept (it enters the tree at the step
  /// that ends it).
  result<void> release(request_id request);

  /// The pages that an open request has, cached ones and its own; null if it is not open.
  page_list pages_of(request_id request) const;

  /// Where the tokens of an open request came from, as far as it got.
  result<request_provenance> provenance(request_id request) const;

  // -- operations without a request -------------------------------------------

  /// Frees pages of a tier, the first in the policy's order first, from the tail of each victim.
  /// Frees what there is if that is less.
  result<evict_result> evict(const evict_request& request);

  /// The time begins with the next step, which is when a cache learns what time it is; so a pin
  /// ends at the first step that is told a time so much later.
  /// @returns limit_reached if the tenant's budget does not allow it; then nothing is pinned.
  result<pin_result> pin(const pin_request& request);

  result<pin_result> unpin(const unpin_request& request);

  /// @returns invalid_argument if it is open already; limit_reached.
  result<session_result> open_session(const open_session_request& request);

  /// @returns unknown_id if this generation is not open; invalid_argument while a request of the
  /// session is open.
  result<session_result> close_session(const close_session_request& request);

  // -- operations on a node ---------------------------------------------------

  // A node's id stays valid while any page of the node is cached: after a split it names the lower
  // part, so that it still names the same prefix; after its last page was evicted it is unknown_id
  // for ever.

  result<lock_result> lock(node_id node);

  result<lock_result> unlock(node_id node);

  /// All or nothing. @returns out_of_host_pages if L2 has no room, evicting nothing.
  result<backup_result> backup(node_id node);

  /// Begins nothing (0 tokens) below the threshold, above the quota or without room. It can be
  /// out_of_device_pages, as allocate.
  result<load_node_result> load_node(const load_node_request& request);

  /// A soft reference to the prefix that ends with `node`: referenced pages are evicted after all
  /// others. If the end is evicted, the reference stays with what is left.
  /// @returns its number.
  result<uint64_t> refer(node_id node);

  void drop_reference(uint64_t reference);

  result<void> clear();

  // -- steps ------------------------------------------------------------------

  /// True if anything is outstanding that only a step can turn into a fact, pages in quarantine
  /// (tree_stats::quarantined) aside: nobody can tell when those are free. Equal on all ranks.
  bool in_flight() const noexcept;

  /// Backups that a step may end, oldest first, at most limits::step_backups: the order of
  /// `step_facts::backups`.
  std::span<const operation_id> backing_up() const noexcept;

  /// True while anything is pinned, so that steps have to tell the time. Equal on all ranks.
  bool has_pins() const noexcept;

  /// Prefetches that the next step may end, at most limits::step_fetches: the order of
  /// `step_facts::fetches`. All that are open take turns.
  std::span<const fetch_id> fetching() const noexcept;

  /// All others that are open, in the order of their turns.
  std::span<const fetch_id> fetching_later() const noexcept;

  /// The logical time at which the next prefetch of a scheduled request is over by its policy.
  std::optional<int64_t> next_deadline_ns() const noexcept;

  /// Applies what all ranks agreed on. Pins whose time is over end; room is made ahead. Pages whose
  /// write failed are on the device alone. Pages whose load failed leave the cache, on both tiers,
  /// with everything below them, since that may have been computed from them.
  /// @param arrived This rank's host pages of each element of fetching(), in its order; an element
  /// with arrived == -1 is ignored. Pages beyond the agreed length go back to the reserve.
  /// @returns the requests whose prefetch ended, in the order in which the prefetches were issued.
  std::vector<ready_request> step(const step_facts& facts, std::span<const page_list> arrived);

  /// Open requests, by number, whose device part the last step lost since a load failed: what they
  /// compute is not valid, and nothing of it is taken. They keep their pages until release; a match
  /// after that finds what is valid. Valid until the next step.
  std::span<const request_id> failed() const noexcept;

  /// Takes what is to be done, in order.
  std::vector<tree_effect> take_effects();

  /// Takes what became true for routers since the last call; empty unless the options ask for it.
  std::vector<cache_event> take_events();

  // -- state ------------------------------------------------------------------

  /// Attaches or detaches L3. Attaching names all pages that have no name yet, and takes back a
  /// `detach` that was not followed by a `release`.
  void change_storage(const storage_change& change);

  /// From now on, until a clear, match answers 0, prefetches are declined and nothing is inserted:
  /// the ranks have diverged, or a device cannot copy.
  void stop_serving() noexcept;

  /// A hash of the whole state except host page numbers, which may differ between ranks (the
  /// reserve is used in the order in which reads happen). Kept incrementally; O(1).
  uint64_t digest() const noexcept;

  tree_stats stats() const noexcept;

  /// All nodes, parents before children, siblings by id.
  std::vector<node_view> nodes() const;

  /// Walks everything and aborts (HICACHE_CHECK) where an invariant does not hold. For tests.
  /// O(pages).
  void check_invariants() const;

private:
  // -- requests ---------------------------------------------------------------

  /// An open request by the engine's number.
  result<const open_request*> find(request_id request) const;
  result<void> check_match(const match_request& asked, const session_state* session) const;
  match_result open(const match_request& asked, request_id id);
  match_result match_turn(const match_request& asked, const session_state& session);
  void close(request_id id);
  /// Closes the request that a streaming session keeps.
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

  // Each part knows only those above it.

  open_backups backups_;
  open_copies copies_;
  open_pins pins_;
  handle_locks handle_locks_;
  open_requests requests_;
  open_fetches fetches_;
  open_sessions sessions_;

  /// Requests that the last step lost, by the numbers that they have inside; and by the engine's.
  std::vector<request_id> lost_;
  std::vector<request_id> failed_;
};

/// Applies any operation.
/// @relates prefix_cache
tree_answer apply(prefix_cache& cache, const tree_operation& operation);

} // namespace hicache
