#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

/// Operations that an engine sends to the tree, their answers, and the messages of the rank
/// reduction. In-process only: arrays are shared, never copied, and no struct here may leave the
/// process.
namespace hicache {

// -- engine -> tree -----------------------------------------------------------

/// A conversation whose KV is kept between turns. The generation distinguishes a session from
/// earlier ones of the same number.
struct session_ref {
  /// Chosen by the engine; 0 is none.
  session_id session = 0;
  /// From the answer to open_session.
  uint64_t generation = 0;

  friend bool operator==(const session_ref&, const session_ref&) = default;
};

/// Opens a request: finds the longest cached prefix and locks it.
struct match_request {
  request_id request = 0;
  cache_namespace ns{};
  /// All tokens of the prompt.
  token_buffer tokens{};
  /// Maximum tokens served from the cache. Engines pass size - 1, to compute the last token.
  uint64_t limit = 0;
  /// The session that this request is a turn of, if any.
  session_ref session{};
};

/// Answer to match. Lengths are tokens, in whole pages except for a streaming session, which may
/// hold a partial page. The L1 part comes first, the L2 part follows.
struct match_result {
  uint64_t l1_tokens = 0;
  uint64_t l2_tokens = 0;
  /// The pages of the L1 part, in prefix order.
  page_list l1_pages{};
  /// The node at the end of the match, including the L2 part; 0 if nothing matched.
  node_id node = 0;
};

/// Starts a prefetch from L3 of what follows the match. At most once per request.
struct prefetch_request {
  request_id request = 0;
};

/// Answer to prefetch.
struct prefetch_result {
  /// Tokens looked up in L3; 0 if the prefetch was declined (no L3, tail below the threshold, or
  /// too many open prefetches).
  uint64_t tokens = 0;
};

/// Ends the request's prefetch according to the prefetch policy, so that the request can run.
struct schedule_request {
  request_id request = 0;
};

/// Answer to schedule: whether the request may run. If not, a later step lists it as ready.
struct schedule_result {
  bool ready = false;
};

/// Loads the request's L2 part to L1.
struct load_request {
  request_id request = 0;
  /// A longer L2 part is not loaded.
  uint64_t quota_tokens = UINT64_MAX;
  /// The answer lists the pages after the first `known_pages`, which the engine has from earlier
  /// answers: 0 lists all, UINT64_MAX none. Listing a long prefix for every token costs time.
  uint64_t known_pages = 0;
};

/// Progress of one load, layer by layer; an engine waits for a layer before computing it. Written
/// by the copy engine, readable from any thread.
class layer_progress {
public:
  explicit layer_progress(uint32_t layers) : layers_(layers) {}

  /// Number of layers in L1, counted from layer 0.
  uint32_t done() const noexcept { return done_.load(std::memory_order_acquire) & ~failed_bit; }

  /// True if the copy failed: from layer done() on, the load's pages hold no valid bytes.
  bool failed() const noexcept { return (done_.load(std::memory_order_acquire) & failed_bit) != 0; }

  /// Blocks until layer `layer` is in L1 or the load failed.
  /// @returns false if the load failed first.
  bool wait(uint32_t layer) const noexcept {
    for (auto now = done_.load(std::memory_order_acquire); (now & ~failed_bit) <= layer;
         now = done_.load(std::memory_order_acquire)) {
      if ((now & failed_bit) != 0)
        return false;
      done_.wait(now, std::memory_order_acquire);
    }
    return true;
  }

  /// True once event() no longer blocks, for engines that have other work meanwhile.
  bool is_queued() const noexcept { return queued_.load(std::memory_order_acquire) != 0; }

  /// Blocks until the copies of all layers are queued on the device: microseconds once the load is
  /// among the oldest three.
  /// @returns The cudaEvent_t after which layer `layer` is in L1, for cudaStreamWaitEvent on the
  /// engine's own stream, so that no thread waits for the copy. Null if there is nothing to wait
  /// for on the device: the layer is already in L1, the load failed (see failed()), or the device
  /// has no events and wait() must be used. Valid until the load after the next two is queued.
  /// Check failed() before using the results: a copy can fail later.
  void* event(uint32_t layer) const noexcept {
    for (auto now = queued_.load(std::memory_order_acquire); now == 0;
         now = queued_.load(std::memory_order_acquire))
      queued_.wait(now, std::memory_order_acquire);
    return layer < events_.size() && done() <= layer && !failed() ? events_[layer] : nullptr;
  }

  uint32_t layers() const noexcept { return layers_; }

  /// Called once by the copy engine when all copies are queued (without events: when it begins).
  /// @param events One per layer, or none.
  void queue(std::vector<void*> events) noexcept {
    events_ = std::move(events);
    queued_.store(1, std::memory_order_release);
    queued_.notify_all();
  }

  /// Called by the copy engine when `count` layers are complete.
  void advance(uint32_t count) noexcept {
    done_.store(count, std::memory_order_release);
    done_.notify_all();
  }

  /// Called by the copy engine when the load cannot finish.
  void fail() noexcept {
    done_.fetch_or(failed_bit, std::memory_order_acq_rel);
    done_.notify_all();
    if (queued_.exchange(1, std::memory_order_acq_rel) == 0)
      queued_.notify_all();
  }

private:
  static constexpr uint32_t failed_bit = uint32_t{1} << 31;

  std::atomic<uint32_t> done_{0};
  std::atomic<uint32_t> queued_{0};
  std::vector<void*> events_;
  uint32_t layers_;
};

using layer_progress_ptr = std::shared_ptr<layer_progress>;

/// Answer to load_back.
struct load_result {
  /// Tokens in L1 now, including those still being loaded. Whole pages.
  uint64_t l1_tokens = 0;
  /// Of these, tokens that this call started loading from L2.
  uint64_t loading_tokens = 0;
  /// Of the loading tokens, those that this request's own prefetch brought from L3.
  uint64_t from_storage_tokens = 0;
  /// The pages of the L1 part after the known ones, in prefix order.
  page_list l1_pages{};
  /// Null if all pages are in L1. May be set although loading_tokens is 0: the request then shares
  /// pages that another request is still loading, and must wait for that load.
  layer_progress_ptr progress;
};

/// Allocates L1 pages for the first `tokens` tokens of the request, where it has none yet.
struct allocate_request {
  request_id request = 0;
  uint64_t tokens = 0;
  /// As in load_request: the pages of the match, or those that a decoding request has already.
  uint64_t known_pages = 0;
};

/// Answer to allocate: the request's pages after the known ones, in prefix order, cached ones
/// before new ones.
struct allocate_result {
  page_list l1_pages{};
};

/// Inserts computed pages into the tree.
struct insert_request {
  request_id request = 0;
  /// All tokens whose KV is in the request's pages: the prompt, or more after decoding.
  token_buffer tokens{};
  /// Under the eviction policy `priority`, higher ones outlive others. Parents inherit it.
  int32_t priority = 0;
  /// True for all but the last chunk of a prefill: the insert is no hit and writes nothing to L2.
  bool chunked = false;
  /// Pins the prefix for this long, within the tenant's budget; 0 does not pin.
  std::chrono::nanoseconds retain{0};
  /// An already recorded cudaEvent_t of this rank, after which the request's pages are complete;
  /// copies wait for it on the device. Null: they are complete now. May be reused once the
  /// operations are answered.
  void* after = nullptr;
  /// As in load_request. Pages that the request had from the tree are never replaced.
  uint64_t known_pages = 0;
};

/// Answer to insert.
struct insert_result {
  /// Tokens that the tree already had in L1; the request's own copies of their pages were freed.
  uint64_t duplicate_tokens = 0;
  /// The request's pages after the known ones, in prefix order, with duplicates replaced by the
  /// tree's pages.
  page_list l1_pages{};
  /// The node at the end of what the tree holds of these tokens; 0 if it holds none.
  node_id node = 0;
  /// Tokens pinned by `retain`.
  uint64_t pinned_tokens = 0;
};

/// Closes a request and unlocks what it used.
struct release_request {
  request_id request = 0;
  /// As in insert_request, but the event after which the request's pages are unused.
  void* after = nullptr;
};

/// Why tokens were recomputed although a tier held them. Worst first: ranks agree on the minimum.
enum class miss_reason : uint8_t {
  /// L3 is suspended for a while, because it failed or did not answer (`store_breaker`).
  unavailable,
  /// L3 did not answer before the deadline.
  late,
  /// A read of L3, or a look-up in it, failed.
  failed,
  /// The copy from L2 to L1 failed: the request's own load, or another's that it shared.
  copy_failed,
  /// A page failed verification.
  corrupt,
  /// A page left L3 between look-up and read.
  gone,
  /// The prefetch ended early: by the prefetch policy, or because L3 was detached.
  stopped,
  /// The faster tier had no free pages for them.
  no_room,
  /// They exceeded the request's quota.
  over_quota,
  /// They were fewer than the threshold.
  too_short,
  /// Computing them was estimated to be faster than reading them from L3 (`prefetch_rule`).
  faster_to_compute,
  /// No tokens were unserved.
  none,
};

/// The name of a reason, as in reports ("no_room").
/// @relates miss_reason
const char* to_string(miss_reason why) noexcept;

/// Tokens that a tier of L3 served.
struct tier_tokens {
  /// The name of the tier's store ("disk").
  std::string tier;
  uint64_t tokens = 0;

  friend bool operator==(const tier_tokens&, const tier_tokens&) = default;
};

/// Where the tokens of a request's prompt came from. L1, L2, L3 and computed tokens add up to the
/// whole prompt; unserved tokens are among the computed ones.
struct request_provenance {
  uint64_t l1_tokens = 0;
  uint64_t l2_tokens = 0;
  /// Tokens brought by the request's own prefetch, and the backend they came from.
  uint64_t l3_tokens = 0;
  std::string l3_backend;
  uint64_t computed_tokens = 0;
  /// Tokens computed although L2 held them or L3 was known to hold them.
  uint64_t unserved_tokens = 0;
  miss_reason why = miss_reason::none;
  /// If L3 is made of tiers: the l3_tokens by tier, fastest first, as its look-up found them. They
  /// add up to l3_tokens. Empty if l3_tokens is 0.
  std::vector<tier_tokens> l3_tiers{};
  /// Estimated time to load all pages that L3 was found to have for the request's last prefetch, on
  /// the slowest rank, and to compute them instead. 0: not known.
  std::chrono::nanoseconds load_estimate{0};
  std::chrono::nanoseconds compute_estimate{0};

  friend bool operator==(const request_provenance&, const request_provenance&) = default;
};

/// Answer to release.
struct release_result {
  /// All zero if the request never allocated pages to compute in.
  request_provenance provenance;
};

// -- operations without a request ---------------------------------------------

/// A tier in the rank's own memory: L1 or L2.
enum class cache_tier : uint8_t { l1, l2 };

/// Evicts whole pages of at least `tokens` tokens, if that many are evictable.
struct evict_request {
  cache_tier tier = cache_tier::l1;
  uint64_t tokens = 0;
};

/// Answer to evict.
struct evict_result {
  /// Tokens whose pages were freed.
  uint64_t tokens = 0;
  /// Tokens whose pages are being written to L2 first; free after a step.
  uint64_t writing_tokens = 0;
};

/// Keeps the cached part of a prefix in the cache until `ttl` of logical time has passed. A pinned
/// page may leave L1 if L2 has it.
struct pin_request {
  cache_namespace ns{};
  token_buffer tokens{};
  std::chrono::nanoseconds ttl{0};
};

/// Removes all pins that end within these tokens.
struct unpin_request {
  cache_namespace ns{};
  token_buffer tokens{};
};

/// Answer to pin and unpin: tokens of the prefix that are pinned now.
struct pin_result {
  uint64_t tokens = 0;
};

/// Opens a session, or reopens one that was closed.
struct open_session_request {
  session_id session = 0;
  /// True: the session keeps the pages of a finished turn, to the token, for the next turn. False:
  /// pages that the session used are evicted after all others.
  bool streaming = false;
};

/// Closes a session: frees pages it kept; others that it used are evicted like any page.
struct close_session_request {
  session_ref session{};
};

/// Answer to open_session and close_session.
struct session_result {
  uint64_t generation = 0;
};

/// Locks the prefix that ends with a node, as a match does. Locks are counted.
struct lock_request {
  node_id node = 0;
};

/// Releases the oldest lock of this node.
struct unlock_request {
  node_id node = 0;
};

/// Answer to lock and unlock: L1 tokens that may be evicted, and L1 tokens that locks protect.
struct lock_result {
  uint64_t evictable_tokens = 0;
  uint64_t protected_tokens = 0;
};

/// Writes the prefix that ends with a node to L2, where missing, whatever the write policy.
struct write_request {
  node_id node = 0;
};

/// Answer to backup.
struct backup_result {
  uint64_t written_tokens = 0;
};

/// Loads the prefix that ends with a node to L1, where L1 lacks it.
struct load_node_request {
  node_id node = 0;
  uint64_t quota_tokens = UINT64_MAX;
};

/// Answer to load_node.
struct load_node_result {
  uint64_t loading_tokens = 0;
};

/// Clears the cache. Refused while requests are open or copies in flight.
struct clear_request {};

/// Answer to clear.
struct clear_result {};

using tree_operation
  = std::variant<match_request, prefetch_request, schedule_request, load_request, allocate_request,
                 insert_request, release_request, evict_request, pin_request, unpin_request,
                 open_session_request, close_session_request, lock_request, unlock_request,
                 write_request, load_node_request, clear_request>;

/// An answer, or the error that prevented it.
using tree_answer = result<
  std::variant<match_result, prefetch_result, schedule_result, load_result, allocate_result,
               insert_result, release_result, evict_result, pin_result, session_result, lock_result,
               backup_result, load_node_result, clear_result>>;

/// Operations of one turn, applied in order. A failed one changes nothing and stops no later one.
struct tree_operations {
  std::vector<tree_operation> list;
};

/// One answer per operation, in order.
struct tree_answers {
  std::vector<tree_answer> list;
};

/// A request whose prefetch has ended. If it is not scheduled yet, it will be ready at once.
struct ready_request {
  request_id request = 0;
  /// Tokens fetched from L3, in L2 now. Whole pages.
  uint64_t fetched_tokens = 0;
  /// Tokens of the request's prefix in L1 and L2 now, including the fetched ones.
  uint64_t l1_tokens = 0;
  uint64_t l2_tokens = 0;
};

/// Answer to step, equal on all ranks.
struct step_result {
  /// False if no reduction was needed: nothing in flight, and no change that the ranks must
  /// compare.
  bool reduced = false;
  /// Whether writes, loads, backups or prefetches were outstanding when the step began.
  bool was_in_flight = false;
  /// Whether any are outstanding now.
  bool in_flight = false;
  /// Requests whose prefetch ended, in the order in which the prefetches were issued.
  std::vector<ready_request> ready;
  /// Open requests, by number, that lost cached pages because a load failed on some rank. Their
  /// results are invalid: release them and match them again.
  std::vector<request_id> failed;
};

// -- rank reduction -----------------------------------------------------------

/// A vector to be reduced to its element-wise minimum over all ranks.
struct reduction {
  reduction_channel channel = reduction_channel::step;
  std::vector<int64_t> values;
};

/// The minimum, equal on all ranks.
struct reduced {
  std::vector<int64_t> values;
};

// -- counters -----------------------------------------------------------------

/// Counters of one rank since its start. Every actor fills in its own part.
struct rank_counters {
  uint64_t bytes_l1_to_l2 = 0;
  uint64_t bytes_l2_to_l1 = 0;
  uint64_t bytes_l2_to_l3 = 0;
  uint64_t bytes_l3_to_l2 = 0;
  uint64_t evicted_l1 = 0;
  uint64_t evicted_l2 = 0;
  uint64_t evicted_l3 = 0;
  uint64_t steps = 0;
  uint64_t reductions = 0;
  uint64_t divergences = 0;
  /// Failed reads and writes of L3: pages recomputed or not stored. Absent pages are no failures.
  uint64_t storage_failures = 0;
  /// Pages whose backup was dropped, because too many were waiting or L3 kept failing.
  uint64_t dropped_backups = 0;
  /// Retried writes to L3.
  uint64_t backup_retries = 0;
  /// Failures reported to the engine: copies and reductions.
  uint64_t errors = 0;
  /// Free pages now.
  uint64_t free_l1 = 0;
  uint64_t free_l2 = 0;
  /// L2 pages kept locked because an expired L3 call may still access them.
  uint64_t quarantined_l2 = 0;
  /// Pages that L3 had and that were left there because computing them was estimated to be faster.
  uint64_t declined_pages = 0;
  /// Current estimates in nanoseconds, 0 if not measured: to compute a first token, and to read a
  /// full set of batches (storage_traffic) from the slowest tier of L3 that was measured.
  uint64_t token_compute_ns = 0;
  uint64_t load_ns = 0;

  rank_counters& operator+=(const rank_counters& other) noexcept;
};

} // namespace hicache
