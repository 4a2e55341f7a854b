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

/// What an engine asks of the tree, what it hears back, and what the tree asks of the other actors.
/// In-process only: arrays are shared, never copied, and no struct here may leave the process.
namespace hicache {

// -- engine -> tree -----------------------------------------------------------

/// A conversation whose KV an engine keeps between turns. Generations tell a session from an
/// earlier one of the same name.
struct session_ref {
  /// Chosen by the engine; 0 names none.
  session_id session = 0;
  /// As open_session answered.
  uint64_t generation = 0;

  friend bool operator==(const session_ref&, const session_ref&) = default;
};

/// Opens a request: finds the longest cached prefix and locks it.
struct match_request {
  request_id request = 0;
  cache_namespace ns{};
  /// All tokens of the prompt.
  token_buffer tokens{};
  /// How many of them may be answered from the cache. Engines pass size - 1, so that there is a
  /// last token to compute.
  uint64_t limit = 0;
  /// The session whose turn this is, if any.
  session_ref session{};
};

/// Lengths are in tokens, whole pages (but for a streaming session, which may hold a page in part).
/// The device part comes first, the host part follows on it.
struct match_result {
  uint64_t l1_tokens = 0;
  uint64_t l2_tokens = 0;
  /// The pages of the device part, in prefix order.
  page_list l1_pages{};
  /// The node at the end of the match, host part included; 0 if nothing matched.
  node_id node = 0;
};

/// Starts looking in L3 for what follows the match. At most once per request.
struct prefetch_request {
  request_id request = 0;
};

/// What became of a request for prefetching.
struct prefetch_result {
  /// Tokens looked for in L3; 0 if the prefetch was declined (no storage, tail below the threshold,
  /// or too many open).
  uint64_t tokens = 0;
};

/// Ends the request's prefetch by the prefetch policy, so that the request can run.
struct schedule_request {
  request_id request = 0;
};

/// Whether a request may run. A pending one becomes ready in the answer of a later step.
struct schedule_result {
  bool ready = false;
};

/// Brings the request's host part to the device.
struct load_request {
  request_id request = 0;
  /// A longer host part is left alone.
  uint64_t quota_tokens = UINT64_MAX;
};

/// Progress of one load, layer by layer: what an engine waits on before it computes a layer. The
/// copy engine writes it; any thread may read it.
class layer_progress {
public:
  explicit layer_progress(uint32_t layers) : layers_(layers) {}

  /// Layers that are in L1, counted from layer 0.
  uint32_t done() const noexcept { return done_.load(std::memory_order_acquire) & ~failed_bit; }

  /// True if the copy failed: the pages of the load hold no valid bytes from layer done() on.
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

  /// True once event() does not block any more. An engine that has other work looks here first.
  bool is_queued() const noexcept { return queued_.load(std::memory_order_acquire) != 0; }

  /// Blocks until the copies of all layers are queued on the device, which takes microseconds once
  /// the load is among the oldest three.
  /// @returns The cudaEvent_t after which layer `layer` is in L1, for cudaStreamWaitEvent on the
  /// engine's own stream, so that no thread waits for the copy; null if there is nothing to wait
  /// for on the device: the layer is there already, the load failed (see failed()), or the device
  /// has no events and wait() has to be used. Valid until the load after the next two is queued; a
  /// copy that fails afterwards shows in failed(), to be asked before the results are used.
  void* event(uint32_t layer) const noexcept {
    for (auto now = queued_.load(std::memory_order_acquire); now == 0;
         now = queued_.load(std::memory_order_acquire))
      queued_.wait(now, std::memory_order_acquire);
    return layer < events_.size() && done() <= layer && !failed() ? events_[layer] : nullptr;
  }

  uint32_t layers() const noexcept { return layers_; }

  /// Called once by the copy engine when all copies are queued (or, without events, when it
  /// begins).
  /// @param events One for each layer, or none.
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
  /// Tokens on the device now, including those still being loaded. Whole pages.
  uint64_t l1_tokens = 0;
  /// Of these, the tokens that this call began to load from L2.
  uint64_t loading_tokens = 0;
  /// Of the loading ones, the tokens that this request's own prefetch brought from L3.
  uint64_t from_storage_tokens = 0;
  /// The pages of the device part, in prefix order.
  page_list l1_pages{};
  /// Null if every page is there. May be set although loading_tokens is 0: then another request's
  /// load is still bringing pages that this one shares, and this one waits for it all the same.
  layer_progress_ptr progress;
};

/// Takes device pages for the first `tokens` tokens of the request, as far as it has none yet.
struct allocate_request {
  request_id request = 0;
  uint64_t tokens = 0;
};

/// Answer to allocate: the pages of the whole request so far, in prefix order: first the cached
/// ones, then the new ones.
struct allocate_result {
  page_list l1_pages{};
};

/// Gives computed pages to the tree.
struct insert_request {
  request_id request = 0;
  /// All tokens whose KV is in the request's pages now: the prompt, or more after decoding.
  token_buffer tokens{};
  /// Pages of a higher priority outlive others under the policy `priority`. Parents inherit it.
  int32_t priority = 0;
  /// True for all but the last part of a prefill in parts: then the insert is no hit and nothing is
  /// written to L2 yet.
  bool chunked = false;
  /// Pins the prefix for so long, if the tenant's budget allows; 0 does not.
  std::chrono::nanoseconds retain{0};
  /// This rank's cudaEvent_t, recorded before, after which the request's pages are complete: copies
  /// wait for it on the device. Null: they are complete now. Free for other use once the operations
  /// are answered.
  void* after = nullptr;
};

/// Answer to insert.
struct insert_result {
  /// Tokens that the tree held on the device already; the request's own copies of these pages were
  /// freed.
  uint64_t duplicate_tokens = 0;
  /// The pages of the whole request, in prefix order, after duplicates were replaced by the tree's
  /// pages.
  page_list l1_pages{};
  /// The node at the end of what the tree holds of these tokens; 0 if that is nothing.
  node_id node = 0;
  /// Tokens that `retain` pinned.
  uint64_t pinned_tokens = 0;
};

/// Closes a request and unlocks what it used.
struct release_request {
  request_id request = 0;
  /// As in insert_request: the event after which nothing uses the request's pages any more.
  void* after = nullptr;
};

/// Why tokens that some tier held were computed all the same. Ranks agree on the smallest of what
/// they saw, so the order is from the worst to the best.
enum class miss_reason : uint8_t {
  /// L3 is left alone for a while, because it failed or did not answer (`store_breaker`).
  unavailable,
  /// L3 did not answer before the deadline.
  late,
  /// L3 could not be read, or could not say what it holds.
  failed,
  /// The copy from L2 to L1 failed, the request's own or another's that it shared.
  copy_failed,
  /// A page did not verify.
  corrupt,
  /// A page left L3 between look-up and read.
  gone,
  /// The fetch was ended early: by the prefetch policy, or because L3 was detached.
  stopped,
  /// No pages of the faster tier were free for them.
  no_room,
  /// There were more than the request's quota.
  over_quota,
  /// There were fewer than the threshold.
  too_short,
  /// Nothing was given up.
  none,
};

/// The name of a reason as reports show it ("no_room").
/// @relates give_up
const char* to_string(miss_reason why) noexcept;

/// Where the tokens of a request's prompt came from. Those of the first three and the computed ones
/// are the whole prompt; what was given up was computed.
struct request_provenance {
  uint64_t l1_tokens = 0;
  uint64_t l2_tokens = 0;
  /// What the request's own prefetch brought, and from which backend.
  uint64_t l3_tokens = 0;
  std::string l3_backend;
  uint64_t computed_tokens = 0;
  /// Tokens that L2 held or L3 was known to hold.
  uint64_t unserved_tokens = 0;
  miss_reason why = miss_reason::none;

  friend bool operator==(const request_provenance&, const request_provenance&) = default;
};

/// Answer to release.
struct release_result {
  /// All zero if the request never allocated pages to compute in.
  request_provenance provenance;
};

// -- operations without a request ---------------------------------------------

/// A tier of the tree's own memory.
enum class cache_tier : uint8_t { device, host };

/// Makes room: frees whole pages, at least `tokens` tokens if there are so many that nobody uses.
struct evict_request {
  cache_tier tier = cache_tier::device;
  uint64_t tokens = 0;
};

/// Answer to evict.
struct evict_result {
  /// Tokens whose pages are free now.
  uint64_t tokens = 0;
  /// Tokens whose pages are being written to L2 first: free after a step.
  uint64_t writing_tokens = 0;
};

/// Keeps what is cached of a prefix from leaving the cache until `ttl` of logical time is over. A
/// pinned page may leave the device if L2 has it.
struct pin_request {
  cache_namespace ns{};
  token_buffer tokens{};
  std::chrono::nanoseconds ttl{0};
};

/// Ends all pins whose end lies within these tokens.
struct unpin_request {
  cache_namespace ns{};
  token_buffer tokens{};
};

/// Answer to pin and unpin: how many tokens of the prefix are pinned now.
struct pin_result {
  uint64_t tokens = 0;
};

/// Opens a session, or reopens one that was closed.
struct open_session_request {
  session_id session = 0;
  /// True: the session keeps the pages of a finished turn, to the token, for the next one. False:
  /// pages that the session used are evicted after all others.
  bool streaming = false;
};

/// Closes a session: what it kept is freed, what it referred to is like any other page.
struct close_session_request {
  session_ref session{};
};

/// Answer to open_session and close_session.
struct session_result {
  uint64_t generation = 0;
};

/// Locks the prefix that ends with a node, as a match does; counts.
struct lock_request {
  node_id node = 0;
};

/// Takes back the oldest lock of this node.
struct unlock_request {
  node_id node = 0;
};

/// Answer to lock and unlock: device tokens that may be evicted, and that locks protect.
struct lock_result {
  uint64_t evictable_tokens = 0;
  uint64_t protected_tokens = 0;
};

/// Writes the prefix that ends with a node to L2, as far as L2 lacks it, whatever the write policy.
struct write_request {
  node_id node = 0;
};

/// Answer to backup.
struct backup_result {
  uint64_t written_tokens = 0;
};

/// Loads the prefix that ends with a node to L1, as far as L1 lacks it.
struct load_node_request {
  node_id node = 0;
  uint64_t quota_tokens = UINT64_MAX;
};

/// Answer to load_node.
struct load_node_result {
  uint64_t loading_tokens = 0;
};

/// Forgets everything that is cached. Refused while requests are open or copies in flight.
struct clear_request {};

/// Answer to clear.
struct clear_result {};

using tree_operation
  = std::variant<match_request, prefetch_request, schedule_request, load_request, allocate_request,
                 insert_request, release_request, evict_request, pin_request, unpin_request,
                 open_session_request, close_session_request, lock_request, unlock_request,
                 write_request, load_node_request, clear_request>;

/// An answer, or why there is none.
using tree_answer = result<
  std::variant<match_result, prefetch_result, schedule_result, load_result, allocate_result,
               insert_result, release_result, evict_result, pin_result, session_result, lock_result,
               backup_result, load_node_result, clear_result>>;

/// Operations of one turn of the engine, applied in order. An operation that fails changes nothing
/// and does not stop the ones behind it.
struct tree_operations {
  std::vector<tree_operation> list;
};

/// One answer per operation, in order.
struct tree_answers {
  std::vector<tree_answer> list;
};

/// A request whose prefetch ended in a step. If it was not scheduled yet, it will be ready at once.
struct ready_request {
  request_id request = 0;
  /// Tokens that came from L3 and are in L2 now. Whole pages.
  uint64_t fetched_tokens = 0;
  /// Tokens of L1 and L2 that the request's prefix has now, fetched ones included.
  uint64_t l1_tokens = 0;
  uint64_t l2_tokens = 0;
};

/// Answer to step: what all ranks know now.
struct step_result {
  /// False if no reduction was needed: nothing was in flight, and nothing has changed that the
  /// ranks have to compare now.
  bool reduced = false;
  /// True if writes, loads, backups or prefetches were outstanding when the step began.
  bool was_in_flight = false;
  /// True while writes, loads, backups or prefetches are outstanding.
  bool in_flight = false;
  /// Requests whose prefetch ended, in the order in which the fetches were issued.
  std::vector<ready_request> ready;
  /// Open requests, by number, that lost cached pages because a load failed on some rank: what they
  /// compute is not valid. Release them and match them again.
  std::vector<request_id> failed;
};

// -- everyone -> rank_reduction ----------------------------------------------------

/// A vector whose element-wise minimum over all ranks is asked for.
struct reduction {
  reduction_channel channel = reduction_channel::step;
  std::vector<int64_t> values;
};

/// The minimum, equal on all ranks.
struct reduced {
  std::vector<int64_t> values;
};

// -- counters for people ------------------------------------------------------

/// What one rank did since it started. Every actor fills its own part.
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
  /// Reads and writes of L3 that failed, so that something was recomputed or not stored; absent
  /// pages are not failures.
  uint64_t storage_failures = 0;
  /// Pages whose backup was given up because too many waited, or because L3 went on failing.
  uint64_t dropped_backups = 0;
  /// Writes to L3 that were tried again.
  uint64_t backup_retries = 0;
  /// What the engine was told of: copies and reductions that failed.
  uint64_t errors = 0;
  /// Pages that nothing occupies now.
  uint64_t free_l1 = 0;
  uint64_t free_l2 = 0;
  /// Pages of L2 that are locked because a call of L3 that was given up may still read them.
  uint64_t quarantined_l2 = 0;

  rank_counters& operator+=(const rank_counters& other) noexcept;
};

} // namespace hicache
