#pragma once

#include "base/error.hpp"
#include "messages/operations.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

namespace hicache {

/// When a page goes to the next slower tier.
enum class write_policy : uint8_t { write_through };

/// When a prefetch ends (seed 000, "Prefetch Strategies").
enum class prefetch_policy : uint8_t { best_effort, wait_complete };

/// Fixed settings of a tree. Equal on all ranks.
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
  prefetch_policy prefetch = prefetch_policy::wait_complete;
  /// A prefetch that would bring fewer tokens is not worth a query (SGLang's default).
  uint32_t prefetch_threshold_tokens = 256;
  /// A host part shorter than this is recomputed rather than loaded (SGLang's default).
  uint32_t load_back_threshold_tokens = 10;
  /// True if there is an L3: pages are hashed, backed up and prefetched.
  bool storage_attached = false;
};

/// What the tree wants done, in order. The tree actor hands each to the actor concerned.
using tree_effect = std::variant<write_command, load_command, backup_command, fetch_command,
                                 terminate_command, refill_command>;

/// What all ranks agreed on in a step; counters since start, in issue order.
struct step_facts {
  uint64_t writes_done = 0;
  uint64_t loads_done = 0;
  uint64_t backups_done = 0;
  /// One per element of ending(), in its order: pages that arrived without a gap on every rank, or
  /// -1 if some rank is not finished.
  std::vector<int64_t> fetched;
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
  uint64_t requests_open = 0;
};

/// The HiRadixTree: which tokens are cached in which pages of L1 and L2, who uses them, and what is
/// on its way between the tiers. A replicated state machine: its state is a function of the
/// operations applied, so equal operations give equal trees on every rank (`lockstep.md`). Recency
/// is an operation counter; no clock, address or hash order decides anything.
///
/// Not thread-safe: the tree actor owns it. Operations that fail change nothing.
///
/// Invariants (checked by `check_invariants`):
/// - Pages on the device form a prefix of every path from the root.
/// - A node holds whole pages; each page belongs to one node, one request, one copy in flight, the
/// reserve, or a free list.
/// - A locked node is never evicted; a lock on a node protects its ancestors.
/// - A page is written to L2 after its parent (backup continuity) and to L3 after it is complete in
/// L2. Pages that a prefetch
///   brought may hang below a page that is on the device only.
class hi_radix_tree {
public:
  explicit hi_radix_tree(const tree_options& options);

  ~hi_radix_tree();

  hi_radix_tree(hi_radix_tree&&) noexcept;

  hi_radix_tree& operator=(hi_radix_tree&&) noexcept;

  // -- operations of the engine -----------------------------------------------

  /// Opens a request and locks what it matched, on device and host, until release. The match ends
  /// at a page boundary not beyond `limit`; a node that is matched in part is split. Refreshes the
  /// recency of the path.
  /// @returns invalid_argument if the request is open already or the limit exceeds the tokens.
  result<match_result> match(const match_request& request);

  /// Starts looking in L3 for the pages that follow the match. At most one prefetch per request.
  result<prefetch_result> prefetch(request_id request);

  /// Ends the request's prefetch by policy. Without a prefetch the request is ready at once.
  result<schedule_result> schedule(request_id request);

  /// Brings the request's host part to the device: takes device pages (evicting if needed) and
  /// begins the copy. A host part below the threshold, or for which there is no room, is left
  /// alone: then loading_tokens is 0 and the request goes on with its device part. The copied-to
  /// pages stay locked until the copy is a fact.
  result<load_result> load_back(request_id request);

  /// Takes device pages for tokens [device_tokens, tokens) of the request, evicting if needed; the
  /// last page may be partial. Pages that the request has already count. All or nothing.
  /// @returns out_of_device_pages without evicting anything if even eviction could not make room.
  result<allocate_result> allocate(request_id request, uint64_t tokens);

  /// Enters the request's whole pages into the tree. Pages that the tree lacks become the tree's;
  /// duplicates are freed and replaced. Nodes that exist on the host only adopt the device pages.
  /// Then starts write-through of what L2 lacks, parents first. The request's lock moves to the end
  /// of what was inserted. Tokens must begin with the tokens of the match.
  result<insert_result> insert(const insert_request& request);

  /// Closes a request: unlocks, and frees the pages that the tree did not take. An unfinished
  /// prefetch is terminated and what arrived is kept (it enters the tree at the step that ends it).
  result<void> release(request_id request);

  // -- steps ------------------------------------------------------------------

  /// True if anything is outstanding that only a step can turn into a fact. Equal on all ranks.
  bool in_flight() const noexcept;

  /// Prefetches that are to be ended: the order of `step_facts::fetched`.
  std::span<const fetch_id> ending() const noexcept;

  /// Applies what all ranks agreed on.
  /// @param arrived This rank's host pages of each element of ending(), in its order; an element
  /// with fetched == -1 is ignored. Pages beyond the agreed length go back to the reserve.
  /// @returns the requests that became ready.
  std::vector<ready_request> step(const step_facts& facts, std::span<const page_list> arrived);

  /// Takes what is to be done, in order.
  std::vector<tree_effect> take_effects();

  // -- state ------------------------------------------------------------------

  /// From now on match answers 0, prefetches are declined and nothing is inserted: the ranks have
  /// diverged.
  void stop_serving() noexcept;

  /// A hash of the whole state except host page numbers, which may differ between ranks (the
  /// reserve is used in the order in which reads happen). Kept incrementally; O(1).
  uint64_t digest() const noexcept;

  tree_stats stats() const noexcept;

  /// Walks everything and aborts (HICACHE_CHECK) where an invariant does not hold. For tests.
  /// O(pages).
  void check_invariants() const;

#ifdef HICACHE_TEST_HOOKS
  /// Makes this rank's state differ from the others', as a memory error would.
  void corrupt_for_test() noexcept;
#endif

private:
  struct impl;

  std::unique_ptr<impl> impl_;
};

} // namespace hicache
