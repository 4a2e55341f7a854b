#pragma once

#include "base/error.hpp"
#include "cache/prefix/cache_event.hpp"
#include "cache/radix/eviction_policy.hpp"
#include "cache/radix/page_allocator.hpp"
#include "messages/operations.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace hicache {

/// When a page goes to the next slower tier (docs/prefix-cache.md, "Write policies").
/// - write_through: with the first insert.
/// - write_through_selective: with the second insert along it.
/// - write_back: when the device needs its room.
/// Where L2 has no free page, all wait until the device needs the room.
enum class write_policy : uint8_t { write_through, write_through_selective, write_back };

/// Room that steps make in L1 ahead of requests, so that none waits for an eviction: as soon as
/// fewer than `low` pages are free, so many are evicted that `high` are. 0 makes no room ahead.
struct watermarks {
  uint32_t low_pages = 0;
  uint32_t high_pages = 0;

  friend bool operator==(const watermarks&, const watermarks&) = default;
};

/// Fixed settings of a cache. Equal on all ranks.
struct tree_options {
  /// Tokens per page, a power of two.
  uint32_t page_size = 64;
  /// Usable L1 pages; the padding page comes on top.
  uint32_t device_pages = 0;
  /// Usable L2 pages, the prefetch reserve included; 0 switches L2 (and with it L3) off.
  uint32_t host_pages = 0;
  /// L2 pages set aside for the prefetcher, at most host_pages.
  uint32_t prefetch_reserve_pages = 0;
  /// Layers of the model, for layer_progress.
  uint32_t layers = 1;
  write_policy write = write_policy::write_through;
  prefetch_settings prefetch{};
  /// A host part shorter than this is recomputed rather than loaded (SGLang's default).
  uint32_t load_back_threshold_tokens = 10;
  /// True if there is an L3 from the start: pages are hashed, backed up and prefetched.
  bool storage_attached = false;
  /// Its name, for provenance.
  std::string storage_backend{};
  /// As of storage_change.
  bool storage_lends_host = false;
  /// L2 pages that may wait for their backup; beyond it the oldest backups are dropped.
  uint64_t backup_limit_pages = UINT64_MAX;
  watermarks device_room{};
  /// Who goes first when room is needed; not null.
  eviction_policy_ptr eviction = lru_policy();
  /// In which order the free pages of L1, and of L2, are handed out.
  page_order order = page_order::newest_first;
  /// The unit is a pair of neighbouring tokens instead of a token, as speculative decoding with
  /// EAGLE needs it: n tokens are n - 1 units, and a page's content depends on the token after it.
  bool bigram = false;
  /// Pages that the pins of one tenant (one salt) may keep; a share of the largest tier is sane.
  uint64_t pin_budget_pages = 0;
  /// A match or an insert that reaches the end of a pin begins the pin's time anew.
  bool pin_refresh = false;
  /// Collect cache events for take_events().
  bool events = false;
  /// False: no prefix is shared; every request keeps its own pages until release (SGLang's
  /// ChunkCache, --disable-radix-cache).
  bool share_prefixes = true;
};

/// What the cache wants done, in order. The tree actor hands each to the actor concerned.
using tree_effect = std::variant<write_command, load_command, backup_command, drop_command,
                                 fetch_command, terminate_command, refill_command, reclaim_command>;

/// What became of one fetch on all ranks.
struct fetch_fact {
  /// Pages that arrived without a gap on every rank, or -1 if some rank is not finished.
  int64_t arrived = -1;
  /// Pages that L3 holds on every rank, as far as that became known.
  int64_t found = 0;
  /// The worst reason of all ranks.
  give_up why = give_up::none;

  friend bool operator==(const fetch_fact&, const fetch_fact&) = default;
};

/// In `step_facts::backups`: a rank's store did not answer in time and may still read the pages.
inline constexpr int64_t backup_given_up = -2;

/// What all ranks agreed on in a step.
struct step_facts {
  /// No prefetch beyond those of the step ended on any rank.
  static constexpr int64_t no_fetch = INT64_MAX;

  /// Copies finished since start, in issue order.
  uint64_t writes_done = 0;
  uint64_t loads_done = 0;
  /// One per element of backing_up(), in its order: pages stored without a gap on every rank; -1
  /// if some rank is not finished; backup_given_up if one has given it up, and its pages are in
  /// quarantine.
  std::vector<int64_t> backups{};
  /// One per element of fetching(), in its order.
  std::vector<fetch_fact> fetches{};
  /// The slowest rank's clock, nanoseconds; a value before the last one is ignored.
  int64_t now_ns = 0;
  /// An index into fetching_later(): the first that ended on some rank. The next step begins there.
  int64_t next_fetch = no_fetch;
  /// True if the last of the writes (loads) done failed on some rank; it is new in this step. Those
  /// before it did not fail on any.
  bool write_failed = false;
  bool load_failed = false;

  friend bool operator==(const step_facts&, const step_facts&) = default;
};

/// Counts for people and metrics. Pages, unless the name says otherwise.
struct tree_stats {
  uint64_t nodes = 0;
  uint64_t device_free = 0;
  /// Device pages in the tree that eviction may take / may not take because of locks.
  uint64_t device_evictable = 0;
  uint64_t device_protected = 0;
  uint64_t host_free = 0;
  uint64_t host_used = 0;
  uint64_t evicted_device = 0;
  uint64_t evicted_host = 0;
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
  bool on_device = false;
  bool on_host = false;
  bool in_storage = false;
  uint32_t device_locks = 0;
  uint32_t host_locks = 0;
  uint32_t pins = 0;
  node_use use;
};

/// Which tokens are cached in which pages of L1 and L2, who uses them, and what is on its way
/// between the tiers. A replicated state machine: its state is a function of the operations
/// applied, so equal operations give equal states on every rank (docs/internals.md). Recency is an
/// operation counter; no clock, address or hash order decides anything.
///
/// Not thread-safe: the tree actor owns it. Operations that fail change nothing.
class prefix_cache {
public:
  virtual ~prefix_cache();

  // -- operations of a request ------------------------------------------------

  /// Opens a request and locks what it matched, on device and host, until release. The match ends
  /// at a page boundary not beyond `limit`; a node that is matched in part is split. Refreshes the
  /// recency of the path; is no hit.
  /// @returns invalid_argument if the request is open already or the limit exceeds the tokens;
  /// unknown_id if its session is not open (any more).
  virtual result<match_result> match(const match_request& request) = 0;

  /// Starts looking in L3 for the pages that follow the match. At most one prefetch per request.
  /// A request that wants pages which another's prefetch is bringing waits for that one, and then
  /// goes on with the rest of its own.
  virtual result<prefetch_result> prefetch(request_id request) = 0;

  /// Ends the request's prefetch by policy. Without a prefetch the request is ready at once.
  virtual result<schedule_result> schedule(request_id request) = 0;

  /// Brings the request's host part to the device: takes device pages (evicting if needed) and
  /// begins the copy. A host part below the threshold or above the quota, or for which there is no
  /// room, is left alone: then loading_tokens is 0 and the request goes on with its device part.
  /// The copied-to pages stay locked until the copy is a fact. It can be out_of_device_pages, as
  /// allocate.
  virtual result<load_result> load_back(const load_request& request) = 0;

  /// Takes device pages for tokens [device_tokens, tokens) of the request, evicting if needed; the
  /// last page may be partial. Pages that the request has already count. All or nothing.
  /// @returns out_of_device_pages without evicting anything if even eviction could not make room.
  /// Pages may have to be written to L2 first; then the error says so, and the same call succeeds
  /// after a step for each node of a path that has to go.
  virtual result<allocate_result> allocate(const allocate_request& request) = 0;

  /// Enters the request's whole pages into the tree. Pages that the tree lacks become the tree's;
  /// duplicates are freed and replaced. Nodes that exist on the host only adopt the device pages.
  /// Counts a hit along the path and then starts to write what the write policy wants in L2,
  /// parents first; neither if `chunked`. The request's lock moves to the end of what was inserted.
  /// Tokens must begin with the tokens of the match.
  virtual result<insert_result> insert(const insert_request& request) = 0;

  /// Closes a request: unlocks, and frees the pages that the tree did not take. A prefetch that
  /// nobody else waits for is terminated, and what arrived is kept (it enters the tree at the step
  /// that ends it).
  virtual result<void> release(request_id request) = 0;

  /// The pages that an open request has, cached ones and its own; null if it is not open.
  virtual page_list pages_of(request_id request) const = 0;

  /// Where the tokens of an open request came from, as far as it got.
  virtual result<request_provenance> provenance(request_id request) const = 0;

  // -- operations without a request -------------------------------------------

  /// Frees pages of a tier, the first in the policy's order first, from the tail of each victim.
  /// Frees what there is if that is less.
  virtual result<evict_result> evict(const evict_request& request) = 0;

  /// The time begins with the next step, which is when a cache learns what time it is; so a pin
  /// ends at the first step that is told a time so much later.
  /// @returns limit_reached if the tenant's budget does not allow it; then nothing is pinned.
  virtual result<pin_result> pin(const pin_request& request) = 0;

  virtual result<pin_result> unpin(const unpin_request& request) = 0;

  /// @returns invalid_argument if it is open already.
  virtual result<session_result> open_session(const open_session_request& request) = 0;

  /// @returns unknown_id if this generation is not open; invalid_argument while a request of the
  /// session is open.
  virtual result<session_result> close_session(const close_session_request& request) = 0;

  // -- operations on a node ---------------------------------------------------

  // A node's id stays valid while any page of the node is cached: after a split it names the lower
  // part, so that it still names the same prefix; after its last page was evicted it is unknown_id
  // for ever.

  virtual result<lock_result> lock(node_id node) = 0;

  virtual result<lock_result> unlock(node_id node) = 0;

  /// All or nothing. @returns out_of_host_pages if L2 has no room, evicting nothing.
  virtual result<backup_result> backup(node_id node) = 0;

  /// Begins nothing (0 tokens) below the threshold, above the quota or without room. It can be
  /// out_of_device_pages, as allocate.
  virtual result<load_node_result> load_node(const load_node_request& request) = 0;

  /// A soft reference to the prefix that ends with `node`: referenced pages are evicted after all
  /// others. If the end is evicted, the reference stays with what is left.
  /// @returns its number.
  virtual result<uint64_t> refer(node_id node) = 0;

  virtual void drop_reference(uint64_t reference) = 0;

  virtual result<void> clear() = 0;

  // -- steps ------------------------------------------------------------------

  /// True if anything is outstanding that only a step can turn into a fact, pages in quarantine
  /// (tree_stats::quarantined) aside: nobody can tell when those are free. Equal on all ranks.
  virtual bool in_flight() const noexcept = 0;

  /// Backups that a step may end, oldest first, at most limits::step_backups: the order of
  /// `step_facts::backups`.
  virtual std::span<const operation_id> backing_up() const noexcept = 0;

  /// True while anything is pinned, so that steps have to tell the time. Equal on all ranks.
  virtual bool has_pins() const noexcept = 0;

  /// Prefetches that the next step may end, at most limits::step_fetches: the order of
  /// `step_facts::fetches`. All that are open take turns.
  virtual std::span<const fetch_id> fetching() const noexcept = 0;

  /// All others that are open, in the order of their turns.
  virtual std::span<const fetch_id> fetching_later() const noexcept = 0;

  /// The logical time at which the next prefetch of a scheduled request is over by its policy.
  virtual std::optional<int64_t> next_stop_ns() const noexcept = 0;

  /// Applies what all ranks agreed on. Pins whose time is over end; room is made ahead. Pages whose
  /// write failed are on the device alone. Pages whose load failed leave the cache, on both tiers,
  /// with everything below them, since that may have been computed from them.
  /// @param arrived This rank's host pages of each element of fetching(), in its order; an element
  /// with arrived == -1 is ignored. Pages beyond the agreed length go back to the reserve.
  /// @returns the requests whose prefetch ended, in the order in which the prefetches were issued.
  virtual std::vector<ready_request> step(const step_facts& facts,
                                          std::span<const page_list> arrived)
    = 0;

  /// Open requests, by number, whose device part the last step lost since a load failed: what they
  /// compute is not valid, and nothing of it is taken. They keep their pages until release; a match
  /// after that finds what is valid. Valid until the next step.
  virtual std::span<const request_id> failed() const noexcept = 0;

  /// Takes what is to be done, in order.
  virtual std::vector<tree_effect> take_effects() = 0;

  /// Takes what became true for routers since the last call; empty unless the options ask for it.
  virtual std::vector<cache_event> take_events() = 0;

  // -- state ------------------------------------------------------------------

  /// Attaches or detaches L3. Attaching names all pages that have no name yet, and takes back a
  /// `detach` that was not followed by a `release`.
  virtual void change_storage(const storage_change& change) = 0;

  /// From now on, until a clear, match answers 0, prefetches are declined and nothing is inserted:
  /// the ranks have diverged, or a device cannot copy.
  virtual void stop_serving() noexcept = 0;

  /// A hash of the whole state except host page numbers, which may differ between ranks (the
  /// reserve is used in the order in which reads happen). Kept incrementally; O(1).
  virtual uint64_t digest() const noexcept = 0;

  virtual tree_stats stats() const noexcept = 0;

  /// All nodes, parents before children, siblings by id.
  virtual std::vector<node_view> nodes() const = 0;

  /// Walks everything and aborts (HICACHE_CHECK) where an invariant does not hold. For tests.
  /// O(pages).
  virtual void check_invariants() const = 0;
};

/// A cache by its options: the tree or, without sharing, a chunk cache; with sessions.
std::unique_ptr<prefix_cache> make_prefix_cache(const tree_options& options);

/// Applies any operation.
/// @relates prefix_cache
tree_answer apply(prefix_cache& cache, const tree_operation& operation);

} // namespace hicache
