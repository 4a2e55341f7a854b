// hicache for engines that keep nothing but the model: one rank of a cache in this process, with
// its prefix cache (the tree), its pages of KV in device memory (L1), host memory (L2), and in a
// store (L3). docs/c-abi.md explains it; this header is the contract, with what hicache.h says of
// errors, structs and fork(). docs/integrating.md explains the operations.
//
// Turns. An engine sends operations in the turns of its scheduler: hc_cache_apply() applies a list
// of them in order, and hc_cache_step() makes known what ended meanwhile. With several ranks each
// one sends the same operations with the same contents in the same order, and steps at the same
// places.
//
// Threads. hc_cache_step() and hc_cache_close() are called by one thread at a time; everything else
// by any number of them. Several threads that apply operations at a time are right for one rank
// alone, since the order counts. Nothing is called back but the log.
//
// fork(). A child must not use what its parent opened: each call there returns HC_FORKED, NULL or
// -1, and changes nothing.
#ifndef HICACHE_TREE_H
#define HICACHE_TREE_H

#include "hicache.h"

#ifdef __cplusplus
extern "C" {
#endif

/// What this header was written for; hc_cache_abi_version() tells what the library offers, at least
/// that.
#define HC_CACHE_ABI_VERSION 1

/// Operations in one call, at most.
#define HC_MAX_OPS 4096

/// For `limit` of an hc_op.
#define HC_NO_LIMIT UINT64_MAX

/// Codes beside those of hicache.h.
enum hc_cache_code {
  /// L1 has no room, even by eviction; or pages are on their way to L2. Step, and try again.
  HC_OUT_OF_DEVICE_PAGES = 2,
  /// L2 has no room, even by eviction.
  HC_OUT_OF_HOST_PAGES = 3,
  /// The ranks hold different trees; no hit is served any more.
  HC_RANKS_DIVERGED = 5,
  /// A rank did not come, or is gone.
  HC_RANK_UNRESPONSIVE = 6,
  /// The ranks were opened with different settings.
  HC_CONFIGURATION_MISMATCH = 17,
  /// A copy between L1 and L2 failed.
  HC_COPY_FAILED = 18,
  /// The device takes no copies any more.
  HC_DEVICE_LOST = 19,
  /// L3 is left alone for a while, because it failed or did not answer.
  HC_STORE_UNAVAILABLE = 20
};

/// Flags of hc_cache_options.
enum hc_cache_flag {
  /// hc_cache_poll() tells which pages L1 and L2 can serve.
  HC_CACHE_EVENTS = 1
};

/// A tier of the rank's own memory.
enum hc_tier { HC_TIER_L1 = 0, HC_TIER_L2 = 1 };

/// What an operation does. In brackets: what it takes of hc_op, and what it sets of hc_answer.
enum hc_op_kind {
  /// Opens a request: finds the longest cached prefix and locks it. [request, tokens, extra_key,
  /// salt, limit: how many of the tokens may come from the cache; engines pass all but the last
  /// one; session and generation, if it is a turn of one] [device_tokens, host_tokens, pages, node]
  HC_OP_MATCH = 1,
  /// Looks in L3 for what follows the match. [request] [wanted_tokens]
  HC_OP_PREFETCH = 2,
  /// The request is to run: ends its prefetch as the settings say. [request] [is_ready; if 0, a
  /// later step lists the request]
  HC_OP_SCHEDULE = 3,
  /// Brings what L2 has of the match to L1. [request, limit: more tokens are left alone]
  /// [device_tokens, loading_tokens, from_storage_tokens, pages, progress]
  HC_OP_LOAD = 4,
  /// Takes pages of L1 for the first `limit` tokens, as far as the request has none. [request,
  /// limit] [pages]
  HC_OP_ALLOCATE = 5,
  /// Gives computed pages to the tree. [request, tokens: all whose KV is in its pages, priority,
  /// ttl_ms: pins them, after, HC_OP_CHUNKED] [duplicate_tokens, pinned_tokens, pages, node]
  HC_OP_INSERT = 6,
  /// Closes a request. [request, after] [what became of its prompt: l1_tokens and the following]
  HC_OP_RELEASE = 7,
  /// Makes room. [tier, limit: tokens] [freed_tokens, writing_tokens]
  HC_OP_EVICT = 8,
  /// Keeps what is cached of a prefix. [tokens, extra_key, salt, ttl_ms] [pinned_tokens]
  HC_OP_PIN = 9,
  /// Ends all pins whose end lies within the tokens. [tokens, extra_key, salt] [pinned_tokens]
  HC_OP_UNPIN = 10,
  /// Opens a session. [session, HC_OP_STREAMING] [generation]
  HC_OP_OPEN_SESSION = 11,
  /// Closes one. [session, generation] [generation]
  HC_OP_CLOSE_SESSION = 12,
  /// Locks the prefix that ends with a node; counts. [node] [evictable_tokens, protected_tokens]
  HC_OP_LOCK = 13,
  /// Takes one such lock back. [node] [evictable_tokens, protected_tokens]
  HC_OP_UNLOCK = 14,
  /// Writes the prefix that ends with a node to L2. [node] [written_tokens]
  HC_OP_BACKUP = 15,
  /// Loads the prefix that ends with a node to L1. [node, limit: more tokens are left alone]
  /// [loading_tokens]
  HC_OP_LOAD_NODE = 16,
  /// Forgets everything. Refused while requests are open or copies under way. [] []
  HC_OP_CLEAR = 17
};

/// Flags of hc_op.
enum hc_op_flag {
  /// For HC_OP_INSERT: a part of a prefill, and not the last one.
  HC_OP_CHUNKED = 1,
  /// For HC_OP_OPEN_SESSION: the session keeps the pages of a turn for the next one.
  HC_OP_STREAMING = 2
};

/// What hc_news tells.
enum hc_news_kind {
  /// Something ended that a step would make known. For engines that sleep between steps.
  HC_NEWS_STEP = 1,
  /// Something failed, although the cache goes on: `code` and `text`.
  HC_NEWS_FAILURE = 2,
  /// Pages can be served from `tier` from now on: `keys` of consecutive pages of a prompt, their
  /// `tokens`, `extra_key` and `salt`, and `parent`.
  HC_NEWS_STORED = 3,
  /// Pages can be served from `tier` no longer: `keys`.
  HC_NEWS_REMOVED = 4,
  /// Nothing is cached any more.
  HC_NEWS_CLEARED = 5,
  /// News were not taken in time: so many are `lost`.
  HC_NEWS_LOST = 6
};

/// A rank.
typedef struct hc_cache hc_cache;

/// The answers to the operations of one call, and the memory of what they point to.
typedef struct hc_answers hc_answers;

/// How far a load is, layer by layer. Lasts as long as the answers it was found in.
typedef struct hc_progress hc_progress;

/// News, and the memory of what they point to.
typedef struct hc_news_list hc_news_list;

/// Where one part (K and V; the latent; the index key) of one layer lies in L1: token t of page p
/// at address + p * page_stride + t * token_stride. Page 0 is padding.
typedef struct hc_layer {
  uint64_t address;
  uint64_t page_stride;
  uint64_t token_stride;
  uint64_t reserved[2];
} hc_layer;

typedef struct hc_cache_options {
  size_t size;
  /// NULL: nothing is logged. Must be callable until hc_cache_close has returned. Lines of all
  /// caches of the process go to each of them.
  hc_log log;
  void* log_user;
  /// Of enum hc_cache_flag.
  uint32_t flags;
  /// If the engine has the memory of L1: how many pages there are, with the padding page; at least
  /// `device-pages` and that one.
  uint32_t l1_pages;
  /// The layers of that memory, part by part: layers[part * layers + layer]. NULL: hicache
  /// allocates L1. The array is not used after the call has returned; the memory until
  /// hc_cache_close has.
  const hc_layer* layers;
  size_t layer_count;
} hc_cache_options;

/// A rank as it was opened.
typedef struct hc_cache_info {
  size_t size;
  uint32_t rank;
  uint32_t ranks;
  /// Tokens.
  uint32_t page_size;
  uint32_t layers;
  /// Of each layer: 2 for K and V, 1 for a latent, 2 with an index key.
  uint32_t parts;
  /// 1 if the CPU may use the addresses of L1.
  uint32_t is_host_addressable;
  /// Of L1 and L2, without padding.
  uint64_t device_pages;
  uint64_t host_pages;
  /// Of one token in one layer, for each part; 0 where there is none.
  uint64_t row_bytes[4];
} hc_cache_info;

/// What a rank did since it was opened.
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
  /// Pages that nothing occupies now.
  uint64_t free_l1;
  uint64_t free_l2;
} hc_cache_counters;

/// One operation. What its kind does not take is not looked at and should be 0.
typedef struct hc_op {
  /// Of enum hc_op_kind.
  uint32_t kind;
  /// Of enum hc_op_flag.
  uint32_t flags;
  /// Chosen by the engine, below 2^63; unique among open requests.
  uint64_t request;
  /// Copied by the call.
  const uint32_t* tokens;
  size_t token_count;
  /// The adapter and the tenant: what separates requests beside their tokens. Any bytes, copied by
  /// the call. NULL: none.
  const char* extra_key;
  size_t extra_key_bytes;
  const char* salt;
  size_t salt_bytes;
  /// In tokens.
  uint64_t limit;
  /// Of enum hc_tier.
  uint32_t tier;
  /// Pages of a higher one outlive others under the eviction policy `priority`.
  int32_t priority;
  /// Chosen by the engine; 0 is none. The generation is that of HC_OP_OPEN_SESSION's answer.
  uint64_t session;
  uint64_t generation;
  /// Of an earlier answer.
  uint64_t node;
  /// A hundred years at most.
  uint64_t ttl_ms;
  /// This rank's cudaEvent_t, recorded before, after which the request's pages are complete
  /// (HC_OP_INSERT), or nothing uses them any more (HC_OP_RELEASE). NULL: that is so now.
  void* after;
  uint64_t reserved[4];
} hc_op;

/// What became of an operation. What its kind does not set is 0 or NULL. All pointers last as long
/// as the answers.
typedef struct hc_answer {
  /// An hc_code or hc_cache_code. If it is not HC_OK, the operation changed nothing, and of the
  /// rest `text` alone is set.
  int32_t code;
  /// Of the operation.
  uint32_t kind;
  /// Why it failed, as a sentence; else NULL.
  const char* text;
  /// In prefix order: page i holds tokens i * page_size and following.
  const uint32_t* pages;
  size_t page_count;
  /// NULL if all pages are there. May be set although loading_tokens is 0: the pages are being
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
  /// Of the loading ones: brought from L3 by this request's prefetch.
  uint64_t from_storage_tokens;
  /// Were in L1 already; the request's own copies of them are free.
  uint64_t duplicate_tokens;
  uint64_t pinned_tokens;
  uint64_t freed_tokens;
  /// Free after a step.
  uint64_t writing_tokens;
  uint64_t written_tokens;
  uint64_t evictable_tokens;
  uint64_t protected_tokens;
  /// Where the tokens of the prompt came from, and how many were computed. All 0 if the request had
  /// no pages to compute in.
  uint64_t l1_tokens;
  uint64_t l2_tokens;
  uint64_t l3_tokens;
  uint64_t computed_tokens;
  /// Of the computed ones: a tier had them.
  uint64_t given_up_tokens;
  /// Why, such as "no_room"; "none".
  const char* give_up;
  /// Which L3 they came from.
  const char* l3_backend;
  uint64_t reserved[4];
} hc_answer;

/// A request whose prefetch ended. If it was not scheduled yet, it will be ready at once.
typedef struct hc_ready {
  uint64_t request;
  /// From L3; in L2 now.
  uint64_t fetched_tokens;
  /// Of the request's prefix, those included.
  uint64_t device_tokens;
  uint64_t host_tokens;
  uint64_t reserved[2];
} hc_ready;

/// What all ranks know since a step.
typedef struct hc_facts {
  size_t size;
  /// 1 as long as copies, backups or prefetches are under way; and whether they were when the step
  /// began.
  uint32_t in_flight;
  uint32_t was_in_flight;
  /// In the order in which the prefetches began. Lasts until the next step or the end of the cache,
  /// as does `failed`.
  const hc_ready* ready;
  size_t ready_count;
  /// Open requests that lost cached pages because a load failed on some rank: what they compute is
  /// not valid. Release them and match them again.
  const uint64_t* failed;
  size_t failed_count;
} hc_facts;

typedef struct hc_news {
  /// Of enum hc_news_kind.
  uint32_t kind;
  /// Of enum hc_tier.
  uint32_t tier;
  int32_t code;
  /// NULL if there is none.
  const char* text;
  /// The page before the first one; NULL if that is the start of a prompt.
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

/// The number of the ABI that this library offers.
uint32_t hc_cache_abi_version(void);

/// Opens a rank: allocates its memory and connects to its L3. The configuration is a JSON object in
/// UTF-8. Its keys are the names of the rank's settings, as in the files of --config:
/// "page-size", "device-pages", "model-id", "hicache-storage-backend" and so
/// on; "config" names such a file. Values are texts, numbers, true or false; the settings that are
/// JSON themselves may be objects. One rank needs nothing else. With several ranks each process
/// opens one, with the same settings, and
/// - "rendezvous": where they meet, HOST:PORT or unix:PATH;
/// - "rank" and "ranks": which one this is, from 0, of how many;
/// - "job": a name of the instance, if wanted.
///
/// Waits for the other ranks, for `step-timeout` at most; all ranks succeed or all fail.
/// Signals, and the caller's signal mask, stay as they are; threads of hicache take no signals.
/// @param options NULL: hicache allocates L1, there are no events, nothing is logged.
/// @param cache Set on success; closed by hc_cache_close().
int32_t hc_cache_open(const char* config_json, const hc_cache_options* options, hc_cache** cache,
                      hc_error* error);

/// Closes a rank and gives its memory back, after what is being copied has been. Answers and news
/// remain until they are freed. No other call may be under way but hc_cache_poll(), which returns
/// HC_STOPPING.
int32_t hc_cache_close(hc_cache* cache);

/// @pre info->size is set
int32_t hc_cache_describe(const hc_cache* cache, hc_cache_info* info);

/// Where a part of a layer lies in L1.
int32_t hc_cache_layer(const hc_cache* cache, uint32_t part, uint32_t layer, hc_layer* where);

/// Applies operations in order, and answers each; one that fails does not stop those behind it. If
/// an operation cannot be understood, none is applied. Waits for a step that is under way, up to
/// that time.
/// @param answers Freed by hc_answers_free(). NULL if nothing was sent.
/// @returns HC_DEADLINE_EXCEEDED if there are no answers yet: the operations are applied all the
/// same, and hc_answers_wait() waits further
int32_t hc_cache_apply(hc_cache* cache, const hc_op* ops, size_t count, uint32_t timeout_ms,
                       hc_answers** answers, hc_error* error);

/// Waits for answers, up to that time.
/// @returns HC_DEADLINE_EXCEEDED
int32_t hc_answers_wait(hc_answers* answers, uint32_t timeout_ms, hc_error* error);

/// The answers, one for each operation, in order.
/// @param count Set to how many there are.
/// @returns NULL if there are none yet
const hc_answer* hc_answers_items(const hc_answers* answers, size_t* count);

/// Ends what `answers` and all that was found in them point to.
int32_t hc_answers_free(hc_answers* answers);

/// Turns what ended meanwhile into facts, the same on every rank.
/// @param wait_ms How long to wait for something to end. The step takes longer only if other ranks
/// do, and then `step-timeout` at most.
/// @pre facts->size is set
int32_t hc_cache_step(hc_cache* cache, uint32_t wait_ms, hc_facts* facts, hc_error* error);

/// How many layers of a load are in L1, from layer 0.
/// @returns HC_COPY_FAILED if the others will not be
int32_t hc_progress_done(const hc_progress* progress, uint32_t* layers);

/// Waits until a layer is in L1, or the load failed. One of them happens, soon.
/// @returns HC_COPY_FAILED
int32_t hc_progress_wait(const hc_progress* progress, uint32_t layer);

/// Has what is queued on a CUDA stream (cudaStream_t) from now on wait until a layer is in L1,
/// without waiting for it here. Without a GPU, it waits here.
int32_t hc_cache_wait_for_layer(hc_cache* cache, const hc_progress* progress, void* stream,
                                uint32_t layer, hc_error* error);

/// Readable exactly as long as news wait. Belongs to the cache; must not be read or closed. -1 if
/// there is no such cache.
int hc_cache_event_fd(const hc_cache* cache);

/// Takes all news, waiting up to that time for the first. Some ten thousand are kept; then the
/// oldest are lost.
/// @param news Set on success; freed by hc_news_free().
/// @returns HC_DEADLINE_EXCEEDED if there are none
int32_t hc_cache_poll(hc_cache* cache, uint32_t timeout_ms, hc_news_list** news);

/// The news, in their order.
const hc_news* hc_news_items(const hc_news_list* news, size_t* count);

int32_t hc_news_free(hc_news_list* news);

/// What this rank did.
/// @pre counters->size is set
int32_t hc_cache_stats(hc_cache* cache, hc_cache_counters* counters);

#ifdef __cplusplus
}
#endif

#endif
