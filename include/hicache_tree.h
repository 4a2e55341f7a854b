// C API of a complete cache rank in this process: its prefix cache (the tree), and its KV pages in
// device memory (L1), host memory (L2) and a store (L3). docs/c-abi.md explains it; this header is
// the contract, together with the rules of hicache.h on errors, structs and fork().
// docs/integrating.md explains the operations.
//
// Turns. An engine sends operations in each turn of its scheduler: hc_cache_apply() applies a list
// of them in order, and hc_cache_step() reports what has completed meanwhile. With several ranks,
// each rank sends the same operations with the same contents in the same order, and steps at the
// same places.
//
// Threads. One thread at a time calls hc_cache_step() and hc_cache_close(); any number of threads
// may call everything else. Concurrent hc_cache_apply() calls are only correct with a single rank,
// because the order of operations matters. The log is the only callback.
//
// fork(). A child process must not use what its parent opened: such calls return HC_FORKED, NULL or
// -1, and change nothing.
#ifndef HICACHE_TREE_H
#define HICACHE_TREE_H

#include "hicache.h"

#ifdef __cplusplus
extern "C" {
#endif

/// ABI version of this header. The library's, hc_cache_abi_version(), must be at least this.
#define HC_CACHE_ABI_VERSION 1

/// Maximum operations per call.
#define HC_MAX_OPS 4096

/// No limit, for `limit` of an hc_op.
#define HC_NO_LIMIT UINT64_MAX

/// Codes in addition to those of hicache.h.
enum hc_cache_code {
  /// L1 has no room even after eviction, or pages are still being written to L2. Step, then retry.
  HC_OUT_OF_DEVICE_PAGES = 2,
  /// L2 has no room even after eviction.
  HC_OUT_OF_HOST_PAGES = 3,
  /// The ranks hold different trees; no further hits are served.
  HC_RANKS_DIVERGED = 5,
  /// A rank did not join in time, or is gone.
  HC_RANK_UNRESPONSIVE = 6,
  /// The ranks were opened with different settings.
  HC_CONFIGURATION_MISMATCH = 17,
  /// A copy between L1 and L2 failed.
  HC_COPY_FAILED = 18,
  /// The device accepts no further copies.
  HC_DEVICE_LOST = 19,
  /// L3 is suspended for a while, because it failed or did not answer.
  HC_STORE_UNAVAILABLE = 20
};

/// Flags of hc_cache_options.
enum hc_cache_flag {
  /// hc_cache_poll() reports which pages L1 and L2 can serve.
  HC_CACHE_EVENTS = 1
};

/// A tier in the rank's own memory.
enum hc_tier { HC_TIER_L1 = 0, HC_TIER_L2 = 1 };

/// Kind of an operation. In brackets: the fields it reads of hc_op, and those it sets of hc_answer.
enum hc_op_kind {
  /// Opens a request: finds the longest cached prefix and locks it. [request, tokens, extra_key,
  /// salt, limit: maximum tokens served from the cache, engines pass all but the last; session and
  /// generation, if it is a turn of one] [device_tokens, host_tokens, pages, node]
  HC_OP_MATCH = 1,
  /// Starts a prefetch from L3 of what follows the match. [request] [wanted_tokens]
  HC_OP_PREFETCH = 2,
  /// Schedules the request: ends its prefetch according to the prefetch policy. [request]
  /// [is_ready; if 0, a later step lists the request]
  HC_OP_SCHEDULE = 3,
  /// Loads the L2 part of the match to L1. [request, limit: nothing is loaded if L2 has more
  /// tokens] [device_tokens, loading_tokens, from_storage_tokens, pages, progress]
  HC_OP_LOAD = 4,
  /// Allocates missing L1 pages for the first `limit` tokens. [request, limit] [pages]
  HC_OP_ALLOCATE = 5,
  /// Inserts computed pages into the tree. [request, tokens: all whose KV is in its pages,
  /// priority, ttl_ms: pins them, after, HC_OP_CHUNKED] [duplicate_tokens, pinned_tokens, pages,
  /// node]
  HC_OP_INSERT = 6,
  /// Closes a request. [request, after] [origin of the prompt's tokens: l1_tokens to l3_backend]
  HC_OP_RELEASE = 7,
  /// Evicts pages of a tier. [tier, limit: tokens] [freed_tokens, writing_tokens]
  HC_OP_EVICT = 8,
  /// Pins the cached part of a prefix. [tokens, extra_key, salt, ttl_ms] [pinned_tokens]
  HC_OP_PIN = 9,
  /// Removes all pins that end within the tokens. [tokens, extra_key, salt] [pinned_tokens]
  HC_OP_UNPIN = 10,
  /// Opens a session. [session, HC_OP_STREAMING] [generation]
  HC_OP_OPEN_SESSION = 11,
  /// Closes a session. [session, generation] [generation]
  HC_OP_CLOSE_SESSION = 12,
  /// Locks the prefix that ends with a node; counted. [node] [evictable_tokens, protected_tokens]
  HC_OP_LOCK = 13,
  /// Releases one such lock. [node] [evictable_tokens, protected_tokens]
  HC_OP_UNLOCK = 14,
  /// Writes the prefix that ends with a node to L2. [node] [written_tokens]
  HC_OP_BACKUP = 15,
  /// Loads the prefix that ends with a node to L1. [node, limit: as for HC_OP_LOAD]
  /// [loading_tokens]
  HC_OP_LOAD_NODE = 16,
  /// Clears the cache. Refused while requests are open or copies in flight. [] []
  HC_OP_CLEAR = 17
};

/// Flags of hc_op.
enum hc_op_flag {
  /// For HC_OP_INSERT: one chunk of a prefill, but not the last.
  HC_OP_CHUNKED = 1,
  /// For HC_OP_OPEN_SESSION: the session keeps a turn's pages for the next turn.
  HC_OP_STREAMING = 2
};

/// Kind of an hc_news.
enum hc_news_kind {
  /// The next step has something to report. For engines that sleep between steps.
  HC_NEWS_STEP = 1,
  /// A failure that the cache survives. [code, text]
  HC_NEWS_FAILURE = 2,
  /// Pages can be served from `tier` from now on. [tier, keys: consecutive pages of a prompt, their
  /// tokens, extra_key, salt, parent]
  HC_NEWS_STORED = 3,
  /// Pages can no longer be served from `tier`. [tier, keys]
  HC_NEWS_REMOVED = 4,
  /// The cache is empty.
  HC_NEWS_CLEARED = 5,
  /// News that were not taken in time were dropped. [lost: how many]
  HC_NEWS_LOST = 6
};

/// A rank of the cache.
typedef struct hc_cache hc_cache;

/// The answers to the operations of one call; owns the memory they point to.
typedef struct hc_answers hc_answers;

/// Progress of a load, layer by layer. Owned by the answers that contain it.
typedef struct hc_progress hc_progress;

/// A list of news; owns the memory they point to.
typedef struct hc_news_list hc_news_list;

/// Location of one part (K, V, latent or index key) of one layer in L1: token t of page p is at
/// address + p * page_stride + t * token_stride. Page 0 is padding.
typedef struct hc_layer {
  uint64_t address;
  uint64_t page_stride;
  uint64_t token_stride;
  uint64_t reserved[2];
} hc_layer;

typedef struct hc_cache_options {
  size_t size;
  /// NULL disables logging. Must stay callable until hc_cache_close has returned. Each cache's log
  /// receives the lines of all caches of the process.
  hc_log log;
  void* log_user;
  /// Flags of enum hc_cache_flag.
  uint32_t flags;
  /// If the engine owns the memory of L1: its pages including the padding page, at least
  /// `device-pages` + 1.
  uint32_t l1_pages;
  /// The layers of that memory: layers[part * layers + layer]. NULL lets hicache allocate L1. The
  /// array is not used after the call has returned; the memory is used until hc_cache_close has
  /// returned.
  const hc_layer* layers;
  size_t layer_count;
} hc_cache_options;

/// Description of an open rank.
typedef struct hc_cache_info {
  size_t size;
  uint32_t rank;
  uint32_t ranks;
  /// Tokens.
  uint32_t page_size;
  uint32_t layers;
  /// Parts per layer: 2 for K and V, 1 for a latent, 2 for a latent with an index key.
  uint32_t parts;
  /// 1 if the CPU may dereference addresses of L1.
  uint32_t is_host_addressable;
  /// Pages of L1 and L2, without padding.
  uint64_t device_pages;
  uint64_t host_pages;
  /// Bytes of one token in one layer, for each part; 0 for absent parts.
  uint64_t row_bytes[4];
} hc_cache_info;

/// Counters of a rank since it was opened.
typedef struct hc_cache_counters {
  size_t size;
  uint64_t bytes_l1_to_l2;
  uint64_t bytes_l2_to_l1;
  uint64_t bytes_l2_to_l3;
  uint64_t bytes_l3_to_l2;
  /// Pages.
  uint64_t evicted_l1;
  uint64_t evicted_l2;
  uint64_t steps;
  uint64_t storage_failures;
  uint64_t errors;
  /// Free pages now.
  uint64_t free_l1;
  uint64_t free_l2;
} hc_cache_counters;

/// One operation. Fields that its kind does not read are ignored and should be 0.
typedef struct hc_op {
  /// A value of enum hc_op_kind.
  uint32_t kind;
  /// Flags of enum hc_op_flag.
  uint32_t flags;
  /// Chosen by the engine, below 2^63; unique among open requests.
  uint64_t request;
  /// Copied by the call.
  const uint32_t* tokens;
  size_t token_count;
  /// Adapter and tenant, which separate requests with equal tokens. Any bytes, copied by the call.
  /// NULL: none.
  const char* extra_key;
  size_t extra_key_bytes;
  const char* salt;
  size_t salt_bytes;
  /// In tokens.
  uint64_t limit;
  /// A value of enum hc_tier.
  uint32_t tier;
  /// Under the eviction policy `priority`, pages of higher priority outlive others.
  int32_t priority;
  /// Chosen by the engine; 0 is none. The generation comes from the answer to HC_OP_OPEN_SESSION.
  uint64_t session;
  uint64_t generation;
  /// From an earlier answer.
  uint64_t node;
  /// At most a hundred years.
  uint64_t ttl_ms;
  /// An already recorded cudaEvent_t of this rank, after which the request's pages are complete
  /// (HC_OP_INSERT) or unused (HC_OP_RELEASE). NULL: that is already so.
  void* after;
  uint64_t reserved[4];
} hc_op;

/// Tokens that a tier of L3 served.
typedef struct hc_tier_tokens {
  /// The name of the tier's store, such as "disk".
  const char* tier;
  uint64_t tokens;
} hc_tier_tokens;

/// How a request used L3.
typedef struct hc_l3_use {
  /// The library's sizeof(hc_l3_use): it sets no field beyond.
  size_t size;
  /// If L3 is made of tiers: the l3_tokens by tier, fastest first. They add up to l3_tokens. None
  /// if that is 0.
  const hc_tier_tokens* tiers;
  size_t tier_count;
  /// Estimated time to load all pages that L3 was found to have for the request's last prefetch,
  /// and to compute them instead, in nanoseconds. 0: not known.
  uint64_t load_estimate_ns;
  uint64_t compute_estimate_ns;
} hc_l3_use;

/// Outcome of an operation. Fields that its kind does not set are 0 or NULL. Pointers live as long
/// as the answers.
typedef struct hc_answer {
  /// An hc_code or hc_cache_code. If it is not HC_OK, the operation changed nothing, and of the
  /// fields below only `kind` and `text` are set.
  int32_t code;
  /// The operation's kind.
  uint32_t kind;
  /// Why it failed, as a sentence; else NULL.
  const char* text;
  /// In prefix order: page i holds tokens from i * page_size on.
  const uint32_t* pages;
  size_t page_count;
  /// NULL if all pages are in L1. May be set although loading_tokens is 0, while pages are being
  /// loaded for another request.
  const hc_progress* progress;
  /// 0 if there is none.
  uint64_t node;
  uint64_t generation;
  uint64_t is_ready;
  uint64_t device_tokens;
  uint64_t host_tokens;
  uint64_t wanted_tokens;
  uint64_t loading_tokens;
  /// Of the loading tokens, those that this request's prefetch brought from L3.
  uint64_t from_storage_tokens;
  /// Tokens that were in L1 already; the request's own copies of their pages were freed.
  uint64_t duplicate_tokens;
  uint64_t pinned_tokens;
  uint64_t freed_tokens;
  /// Tokens being written to L2 first; free after a step.
  uint64_t writing_tokens;
  uint64_t written_tokens;
  uint64_t evictable_tokens;
  uint64_t protected_tokens;
  /// Origin of the prompt's tokens. All 0 if the request never allocated pages to compute in.
  uint64_t l1_tokens;
  uint64_t l2_tokens;
  uint64_t l3_tokens;
  uint64_t computed_tokens;
  /// Unserved tokens: computed although a tier had them.
  uint64_t given_up_tokens;
  /// The miss reason, such as "no_room"; "none" if there is none.
  const char* give_up;
  /// The L3 backend that the l3_tokens came from.
  const char* l3_backend;
  /// NULL unless the operation is a release.
  const hc_l3_use* l3;
  uint64_t reserved[3];
} hc_answer;

/// A request whose prefetch has ended. If it is not scheduled yet, it will be ready at once.
typedef struct hc_ready {
  uint64_t request;
  /// Tokens fetched from L3, in L2 now.
  uint64_t fetched_tokens;
  /// Tokens of the request's prefix in L1 and L2, including the fetched ones.
  uint64_t device_tokens;
  uint64_t host_tokens;
  uint64_t reserved[2];
} hc_ready;

/// Result of a step, equal on all ranks.
typedef struct hc_facts {
  size_t size;
  /// 1 if copies, backups or prefetches are in flight now; the same for when the step began.
  uint32_t in_flight;
  uint32_t was_in_flight;
  /// In the order of the prefetches' starts. Like `failed`, valid until the next step or the
  /// cache's end.
  const hc_ready* ready;
  size_t ready_count;
  /// Open requests that lost cached pages because a load failed on some rank. Their results are
  /// invalid: release them and match them again.
  const uint64_t* failed;
  size_t failed_count;
} hc_facts;

typedef struct hc_news {
  /// A value of enum hc_news_kind.
  uint32_t kind;
  /// A value of enum hc_tier.
  uint32_t tier;
  int32_t code;
  /// NULL if there is none.
  const char* text;
  /// The page before the first of `keys`; NULL if that is the first page of a prompt.
  const hc_key* parent;
  const hc_key* keys;
  size_t key_count;
  const uint32_t* tokens;
  size_t token_count;
  const char* extra_key;
  size_t extra_key_bytes;
  const char* salt;
  size_t salt_bytes;
  uint64_t lost;
  uint64_t reserved[2];
} hc_news;

/// ABI version of this library.
uint32_t hc_cache_abi_version(void);

/// Opens a rank: allocates its memory and connects to its L3. The configuration is a JSON object in
/// UTF-8. Its keys are the names of the rank's settings, as in the files of --config: "page-size",
/// "device-pages", "model-id", "hicache-storage-backend" and so on; "config" names such a file.
/// Values are strings, numbers, true or false; settings that are JSON themselves may be objects. A
/// single rank needs nothing else. With several ranks, each process opens one, with the same
/// settings, and
/// - "rendezvous": where the ranks meet, HOST:PORT or unix:PATH;
/// - "rank" and "ranks": the number of this rank, from 0, and how many there are;
/// - "job": optional, a name of the instance.
///
/// Waits for the other ranks, at most `step-timeout`; all ranks succeed or all fail. Leaves signal
/// handlers and the caller's signal mask as they are; hicache's threads take no signals.
/// @param options NULL: hicache allocates L1, emits no events, and logs nothing.
/// @param cache Set on success; closed by hc_cache_close().
int32_t hc_cache_open(const char* config_json, const hc_cache_options* options, hc_cache** cache,
                      hc_error* error);

/// Closes a rank and frees its memory, after running copies have finished. Answers and news remain
/// until they are freed. No other call may be in progress but hc_cache_poll(), which returns
/// HC_STOPPING.
int32_t hc_cache_close(hc_cache* cache);

/// @pre info->size is set
int32_t hc_cache_describe(const hc_cache* cache, hc_cache_info* info);

/// Location of a part of a layer in L1.
int32_t hc_cache_layer(const hc_cache* cache, uint32_t part, uint32_t layer, hc_layer* where);

/// Applies operations in order and answers each; a failed operation does not stop later ones. If an
/// operation is malformed, none is applied. Waits for a step in progress, up to `timeout_ms`.
/// @param answers Freed by hc_answers_free(). NULL if no operation was sent.
/// @returns HC_DEADLINE_EXCEEDED if there are no answers yet: the operations are still applied, and
/// hc_answers_wait() waits further
int32_t hc_cache_apply(hc_cache* cache, const hc_op* ops, size_t count, uint32_t timeout_ms,
                       hc_answers** answers, hc_error* error);

/// Waits for answers, up to `timeout_ms`.
/// @returns HC_DEADLINE_EXCEEDED
int32_t hc_answers_wait(hc_answers* answers, uint32_t timeout_ms, hc_error* error);

/// The answers, one for each operation, in order.
/// @param count Set to the number of answers.
/// @returns NULL if there are none yet
const hc_answer* hc_answers_items(const hc_answers* answers, size_t* count);

/// Frees `answers` and everything reached through them.
int32_t hc_answers_free(hc_answers* answers);

/// Turns what has completed since the last step into facts, the same on every rank.
/// @param wait_ms How long to wait for a completion. The step takes longer only if other ranks do,
/// and then at most `step-timeout`.
/// @pre facts->size is set
int32_t hc_cache_step(hc_cache* cache, uint32_t wait_ms, hc_facts* facts, hc_error* error);

/// Number of layers of a load that are in L1, counted from layer 0.
/// @returns HC_COPY_FAILED if the load failed, so the remaining layers will not arrive
int32_t hc_progress_done(const hc_progress* progress, uint32_t* layers);

/// Waits until a layer is in L1 or the load has failed. One of the two happens soon.
/// @returns HC_COPY_FAILED
int32_t hc_progress_wait(const hc_progress* progress, uint32_t layer);

/// Makes work queued on a CUDA stream (cudaStream_t) from now on wait until a layer is in L1,
/// without blocking the caller. Without a GPU it blocks.
int32_t hc_cache_wait_for_layer(hc_cache* cache, const hc_progress* progress, void* stream,
                                uint32_t layer, hc_error* error);

/// A descriptor that is readable exactly while news are waiting. Owned by the cache; do not read or
/// close it. -1 if there is no such cache.
int hc_cache_event_fd(const hc_cache* cache);

/// Takes all news, waiting up to `timeout_ms` for the first. Tens of thousands are kept; beyond
/// that the oldest are lost.
/// @param news Set on success; freed by hc_news_free().
/// @returns HC_DEADLINE_EXCEEDED if there are none
int32_t hc_cache_poll(hc_cache* cache, uint32_t timeout_ms, hc_news_list** news);

/// The news, in order.
const hc_news* hc_news_items(const hc_news_list* news, size_t* count);

int32_t hc_news_free(hc_news_list* news);

/// Counters of this rank.
/// @pre counters->size is set
int32_t hc_cache_stats(hc_cache* cache, hc_cache_counters* counters);

#ifdef __cplusplus
}
#endif

#endif
