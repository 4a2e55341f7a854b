// C API of the hicache page store: pages of bytes in the memory of a hicache-node on this host or
// another. docs/c-abi.md explains it; this header is the contract.
//
// Calls. hc_put, hc_get, hc_lookup, hc_prefetch, hc_pin, hc_remove, hc_offload_store and
// hc_offload_load take a batch of pages, return a ticket at once, and complete later: hc_event_fd()
// is readable while completions are waiting, hc_poll() takes them, hc_wait() waits for one call.
// The log is the only callback.
//
// Errors. Functions that can fail return an hc_code, 0 for success. Those that take an hc_error*
// fill it with a sentence that says what was wrong and what was expected. Treat unknown codes as
// failures; later versions add codes.
//
// Threads. Any number of threads may use a client concurrently. Calls return at once unless
// documented to wait.
//
// fork(). A child process must not use what its parent opened: such calls return HC_FORKED and
// change nothing. The child may open its own client. Until it exits or calls exec, it keeps the
// parent's connection open.
//
// Structs. Those passed singly begin with `size`, to be set to their sizeof; bytes beyond what the
// library knows must be 0. Those passed in arrays have reserved fields instead, which must be 0.
// Both can grow without breaking old programs.
#ifndef HICACHE_H
#define HICACHE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// ABI version of this header. hc_abi_version() returns the library's, which must be at least this.
#define HC_ABI_VERSION 1

/// Maximum pages per call.
#define HC_MAX_PAGES 4096

/// Result of a call or of a page.
enum hc_code {
  HC_OK = 0,
  /// A value is not allowed; the error text says which.
  HC_INVALID_ARGUMENT = 1,
  /// The ticket is not open (any more).
  HC_UNKNOWN_ID = 4,
  /// The node does not have the page.
  HC_NOT_FOUND = 7,
  /// The page failed verification: a miss.
  HC_CORRUPT_PAGE = 8,
  /// The deadline passed first.
  HC_DEADLINE_EXCEEDED = 9,
  /// The node has no room and nothing it may evict.
  HC_STORE_FULL = 10,
  /// The operating system reported a failure.
  HC_IO_FAILURE = 11,
  /// The node cannot be reached. The client reconnects by itself with the following calls.
  HC_PEER_UNREACHABLE = 12,
  /// The peer at the socket sent bytes that do not decode.
  HC_MALFORMED_MESSAGE = 13,
  /// Too many open calls, or the share of this client or its tenant at the node is exceeded.
  HC_LIMIT_REACHED = 14,
  /// Not supported, for example because the library or the node is too old.
  HC_UNSUPPORTED = 15,
  /// The client is being closed.
  HC_STOPPING = 16,
  /// The client belongs to the process that this one was forked from.
  HC_FORKED = 1000,
  HC_OUT_OF_MEMORY = 1001,
  /// A bug in hicache. The client remains usable and can be closed.
  HC_INTERNAL = 1002
};

/// Flags of hc_call.
enum hc_flag {
  /// For hc_prefetch and hc_pin: each page continues the one before it, so pages after the first
  /// missing one are of no use.
  HC_CHAIN = 1,
  /// For hc_pin: verifies all bytes, so that the pages can be read in place.
  HC_IN_PLACE = 2
};

/// Severity of a log line.
enum hc_level { HC_DEBUG = 1, HC_INFO = 2, HC_WARNING = 3, HC_ERROR = 4 };

/// A connection to a node, and its worker threads.
typedef struct hc_client hc_client;

/// Pages that the node keeps in place and unchanged until hc_unpin(), the expiry of the lease, or
/// the end of the client.
typedef struct hc_lease hc_lease;

/// Identifies a submitted call. Never 0; never reused by the same client.
typedef uint64_t hc_ticket;

/// The name of a page. Use digests, as hc_names() makes them: names must be uniformly distributed.
typedef struct hc_key {
  uint8_t bytes[32];
} hc_key;

typedef struct hc_error {
  /// An hc_code.
  int32_t code;
  /// A sentence, truncated if too long. May be empty.
  char text[252];
} hc_error;

/// Memory of the caller, which must stay valid until the call has completed.
typedef struct hc_part {
  /// hc_put only reads it. NULL if there are no bytes.
  void* data;
  size_t bytes;
} hc_part;

/// One page of hc_put or hc_get.
typedef struct hc_page {
  hc_key key;
  /// For hc_put: the preceding page of the prefix; all zero for a first page. The node evicts no
  /// page before its successors.
  hc_key parent;
  /// The page is the concatenation of the parts. The array is not used after the call returns.
  const hc_part* parts;
  size_t part_count;
  uint64_t reserved[2];
} hc_page;

/// Options of a batch.
typedef struct hc_call {
  size_t size;
  /// Flags of enum hc_flag.
  uint32_t flags;
  /// Time limit, counted from the call; not 0. Values above one hour count as one hour.
  uint32_t timeout_ms;
  /// Returned in the completion.
  void* user;
  /// NULL, or an array that holds one hc_code per page when the call has completed.
  int32_t* codes;
  /// For hc_get and hc_offload_load: reads from this lease alone, not from the node. Else NULL.
  hc_lease* lease;
} hc_call;

/// Outcome of a call.
typedef struct hc_completion {
  hc_ticket ticket;
  /// As given in hc_call.
  void* user;
  /// The lease of an hc_pin that pinned at least one page; else NULL.
  hc_lease* lease;
  /// Pages that are HC_OK: stored, read, present, pinned or removed.
  uint32_t pages;
  /// Of these, the pages before the first that is not HC_OK.
  uint32_t prefix;
  /// Error of the first page that failed other than with HC_NOT_FOUND; HC_OK if there is none.
  hc_error error;
  uint64_t reserved[4];
} hc_completion;

/// One page of a lease.
typedef struct hc_leased_page {
  /// The bytes, if the lease was made with HC_IN_PLACE and the page was pinned; else NULL.
  const void* data;
  /// 0 if the page was not pinned.
  size_t bytes;
  uint64_t reserved[2];
} hc_leased_page;

/// What a client has done since it was opened, and its current state.
typedef struct hc_counters {
  size_t size;
  /// 1 if the node answered last time; 0 before its first answer or if it is unreachable.
  uint64_t connected;
  /// Calls not yet completed, and completions not yet taken by hc_poll or hc_wait.
  uint64_t open_calls;
  uint64_t completions;
  uint64_t leases;
  /// Pages and bytes of hc_put that the node holds, whether stored by that call or earlier.
  uint64_t pages_put;
  uint64_t bytes_put;
  /// Pages and bytes read by hc_get.
  uint64_t pages_got;
  uint64_t bytes_got;
  /// Pages of hc_get that the node did not have, and pages that failed verification.
  uint64_t pages_missed;
  uint64_t pages_corrupt;
  /// Pages of hc_put and hc_get that failed for any other reason.
  uint64_t pages_failed;
} hc_counters;

/// State of a node, as it reports it.
typedef struct hc_node_state {
  size_t size;
  uint64_t clients;
  /// The node's memory, how much of it holds pages, and the number of pages.
  uint64_t capacity_bytes;
  uint64_t used_bytes;
  uint64_t pages;
  /// Bytes reserved for pages being written, and bytes leased by clients.
  uint64_t reserved_bytes;
  uint64_t leased_bytes;
  uint64_t reservations;
  uint64_t leases;
  /// Counted since the node started.
  uint64_t pages_evicted;
  uint64_t pages_written;
  uint64_t pages_wanted;
  uint64_t pages_found;
  uint64_t expired_leases;
  uint64_t refused_calls;
} hc_node_state;

/// Receives one log line, without a newline. Called concurrently by hicache's threads and by
/// threads inside hc_connect() or hc_node_status(). Must not call hicache, and must return soon.
typedef void (*hc_log)(void* user, int32_t level, const char* text);

typedef struct hc_options {
  size_t size;
  /// NULL disables logging. Must stay callable until hc_close has returned.
  hc_log log;
  void* log_user;
} hc_options;

/// ABI version of this library. Programs built for this or a smaller version work.
uint32_t hc_abi_version(void);

/// The version of hicache, such as "0.1.0". Valid while the library is loaded.
const char* hc_version(void);

/// The name of a code ("not_found"), or "unknown". Valid while the library is loaded.
const char* hc_code_name(int32_t code);

/// The meaning of a code as a sentence without a full stop. Valid while the library is loaded.
const char* hc_code_sentence(int32_t code);

/// Opens a client. The node need not be running yet: the client connects with the first call. The
/// configuration is a JSON object in UTF-8:
/// - "socket": path at which this host's node listens; or instead of it
/// - "address": HOST:PORT at which another host's node listens. Bytes travel in messages, and
/// pinned pages are copied into memory of the lease, so they survive the loss of the node.
/// - "tls_cert", "tls_key", "tls_ca": only with "address", PEM files: this client's certificate,
/// its key, and the certificate of the authority that signed the node's. All three, or none for a
/// node without TLS.
/// - "namespace": everything that distinguishes pages of equal keys: model, dtype, layout, rank.
/// - "tenant": the tenant whose share at the node this client uses; if absent, the share common to
/// all clients without a tenant.
/// - "threads": batches executed concurrently, 1 to 64; 4 if absent.
/// - "calls": maximum open calls, including those whose completions were not taken; 1024 if absent.
/// - "lease_ms": how long pages stay pinned; as long as the node allows if absent.
///
/// Leaves signal handlers and the caller's signal mask as they are; hicache's threads take no
/// signals.
/// @param options May be NULL.
/// @param client Set on success; closed by hc_close().
int32_t hc_open(const char* config_json, const hc_options* options, hc_client** client,
                hc_error* error);

/// Closes a client and ends its leases and offloads. Batches not yet begun are dropped, batches
/// that wait for the node stop waiting, and batches being copied are waited for. After this has
/// returned, hicache uses no memory of the caller any more, and completions that were not taken are
/// lost. Threads in hc_poll() or hc_wait() get HC_STOPPING; no other call may be in progress.
int32_t hc_close(hc_client* client);

/// Connects to the node now rather than with the first call. Waits up to `timeout_ms`.
int32_t hc_connect(hc_client* client, uint32_t timeout_ms, hc_error* error);

/// Makes keys from any bytes: SHA-256 over the client's namespace and the bytes, so keys differ
/// between namespaces.
/// @param names The names, concatenated. May be NULL if they have no bytes.
/// @param lengths Length of each name in bytes. May be NULL if count is 0, as may keys.
/// @param keys Array of `count` keys to fill.
int32_t hc_names(const hc_client* client, const void* names, const size_t* lengths, size_t count,
                 hc_key* keys);

/// Reads what of a model's folder, an adapter's folder, or a single file of weights decides the
/// bytes of its KV, by content: all bytes of the weights, once, and remembers the result in
/// ${XDG_CACHE_HOME:-~/.cache}/hicache/models until a file changes. Needs no client. Blocks for as
/// long as reading takes.
/// @param json Receives a JSON object, NUL-terminated: "weights", a digest; "files", digests of
/// the settings and programs beside them by name; "bytes", of the weights; "changed_ns", when any
/// of the files or a link to them changed last, in nanoseconds since 1970, but for those of a
/// Hugging Face cache, which are named by their content.
/// @param size Of `json` in bytes. HC_LIMIT_REACHED if it is too short.
int32_t hc_model_content(const char* path, char* json, size_t size, hc_error* error);

/// Stores pages. Pages that the node has or that another client is writing are not written again
/// and count as stored. A page is visible whole or not at all. Page errors: HC_STORE_FULL,
/// HC_LIMIT_REACHED, HC_PEER_UNREACHABLE, HC_DEADLINE_EXCEEDED (the page may have been stored
/// anyway).
/// @param ticket Set on success.
int32_t hc_put(hc_client* client, const hc_page* pages, size_t count, const hc_call* call,
               hc_ticket* ticket, hc_error* error);

/// Reads pages into their parts and verifies each. The node first fetches pages of other hosts,
/// until the deadline. Page errors: HC_NOT_FOUND, HC_CORRUPT_PAGE, HC_INVALID_ARGUMENT (the parts
/// do not have the page's length), HC_LIMIT_REACHED, HC_PEER_UNREACHABLE, HC_DEADLINE_EXCEEDED. The
/// parts of a page that is not HC_OK hold unspecified bytes.
int32_t hc_get(hc_client* client, const hc_page* pages, size_t count, const hc_call* call,
               hc_ticket* ticket, hc_error* error);

/// Tells which pages the node has now. They may be evicted at any time; pin pages that must stay.
int32_t hc_lookup(hc_client* client, const hc_key* keys, size_t count, const hc_call* call,
                  hc_ticket* ticket, hc_error* error);

/// Has the node fetch pages of other hosts, and tells which pages it has afterwards.
int32_t hc_prefetch(hc_client* client, const hc_key* keys, size_t count, const hc_call* call,
                    hc_ticket* ticket, hc_error* error);

/// Pins pages, after the node has fetched those of other hosts: they stay in the node until the
/// lease ends. Pages removed meanwhile can still be read through the lease. Pages beyond the share
/// of the client or its tenant are HC_NOT_FOUND.
int32_t hc_pin(hc_client* client, const hc_key* keys, size_t count, const hc_call* call,
               hc_ticket* ticket, hc_error* error);

/// Removes pages of this client's namespace from the node. An absent page counts as removed.
int32_t hc_remove(hc_client* client, const hc_key* keys, size_t count, const hc_call* call,
                  hc_ticket* ticket, hc_error* error);

/// Pages of a lease, in the order of the keys passed to hc_pin().
/// @param left_ms NULL, or set to the remaining time of the lease. After it has expired, the bytes
/// in place may be another page's: a reader still active then must discard what it has read.
int32_t hc_lease_pages(const hc_lease* lease, size_t first, size_t count, hc_leased_page* pages,
                       uint32_t* left_ms);

/// Ends a lease. Calls of hc_get that use it still complete. Does not wait.
int32_t hc_unpin(hc_lease* lease);

/// A descriptor that is readable exactly while completions are waiting. Owned by the client; do not
/// read or close it. -1 if there is no such client.
int hc_event_fd(const hc_client* client);

/// Takes completions, waiting up to `timeout_ms` for the first one.
/// @param count Set to the number taken; 0 is not an error.
int32_t hc_poll(hc_client* client, hc_completion* completions, size_t capacity, uint32_t timeout_ms,
                size_t* count);

/// Waits up to `timeout_ms` for one call and takes its completion. For sequential programs; not for
/// tickets that another thread may take by hc_poll().
/// @returns HC_DEADLINE_EXCEEDED if the call has not completed (it continues); HC_UNKNOWN_ID
int32_t hc_wait(hc_client* client, hc_ticket ticket, uint32_t timeout_ms,
                hc_completion* completion);

/// Counters of this client.
/// @pre counters->size is set
int32_t hc_stats(const hc_client* client, hc_counters* counters);

/// Withdraws all pages of the client's namespace from the node. Waits up to `timeout_ms`.
/// @param evict_first Not 0: they stay, and leave the node's memory before all others until they
/// are used again. For the pages of a model's version that has ended.
/// @param pages Set to how many there were in memory.
int32_t hc_clear(hc_client* client, int32_t evict_first, uint32_t timeout_ms, uint64_t* pages,
                 hc_error* error);

/// Queries the node's state. Waits up to `timeout_ms`.
/// @pre state->size is set
int32_t hc_node_status(hc_client* client, uint32_t timeout_ms, hc_node_state* state,
                       hc_error* error);

// Offload: the engine keeps its blocks and block table; hicache copies blocks between the engine's
// memory and the node. Any thread, as for the calls above.

/// Device of an hc_layout: HC_HOST or the number of a CUDA device.
enum hc_device { HC_HOST = -1 };

/// For hc_offload_load, in place of a block number: this block is not loaded.
#define HC_NO_BLOCK UINT32_MAX

/// The blocks of an engine, with their tensors.
typedef struct hc_offload hc_offload;

/// What one layer, or one part of it (keys, values), stores in the blocks.
typedef struct hc_tensor {
  /// Address of block 0.
  void* data;
  /// Number of blocks.
  uint64_t blocks;
  /// Bytes from the start of a block to the start of the next.
  uint64_t stride;
  /// Bytes of a block. The gap up to the next block is not touched.
  uint64_t block_bytes;
  /// The layer, from 0. Tensors are listed in layer order, one or more per layer.
  uint64_t layer;
  uint64_t reserved[2];
} hc_tensor;

/// An engine's blocks. A block has a piece in each tensor. The bytes of a page are its blocks'
/// pieces, layer by layer, tensor by tensor, block by block, so everything that this order depends
/// on must be part of the client's namespace.
typedef struct hc_layout {
  size_t size;
  /// HC_HOST or the number of a CUDA device.
  int32_t device;
  uint32_t blocks_per_page;
  /// The array is used only during the call, the memory it describes until hc_offload_close().
  const hc_tensor* tensors;
  size_t tensor_count;
} hc_layout;

/// One page of hc_offload_store or hc_offload_load.
typedef struct hc_offload_page {
  hc_key key;
  /// For hc_offload_store, as in hc_page.
  hc_key parent;
  /// `blocks_per_page` block numbers. The array is not used after the call has returned.
  const uint32_t* blocks;
  uint64_t reserved[2];
} hc_offload_page;

/// Opens an offload: checks the layout and copies nothing.
/// @param offload Set on success; closed by hc_offload_close() or with the client.
/// @returns HC_UNSUPPORTED if this library cannot copy blocks of the device
int32_t hc_offload_open(hc_client* client, const hc_layout* layout, hc_offload** offload,
                        hc_error* error);

/// Closes an offload after waiting for its open calls. Afterwards the engine's memory is not used
/// any more. No other call with this offload may be in progress.
int32_t hc_offload_close(hc_offload* offload);

/// Bytes of a page of this layout. 0 if `offload` is NULL.
uint64_t hc_offload_page_bytes(const hc_offload* offload);

/// Stores blocks as pages, as hc_put() does. The blocks must not change until the call has
/// completed.
/// @param event NULL, or an already recorded cudaEvent_t after which the blocks are complete. The
/// copies wait for it, the caller does not. NULL for HC_HOST.
int32_t hc_offload_store(hc_offload* offload, const hc_offload_page* pages, size_t count,
                         const hc_call* call, void* event, hc_ticket* ticket, hc_error* error);

/// Loads pages into blocks: verifies all bytes of all pages, then copies layer by layer. Page
/// errors as for hc_get; HC_INVALID_ARGUMENT if the page's length is not that of the layout. The
/// blocks of a page that is not HC_OK stay unchanged, unless `error` reports an expired lease or a
/// CUDA error: then they hold unspecified bytes.
int32_t hc_offload_load(hc_offload* offload, const hc_offload_page* pages, size_t count,
                        const hc_call* call, hc_ticket* ticket, hc_error* error);

/// Waits up to `timeout_ms` until a layer of all pages of a load is in their blocks, so that the
/// engine can compute it while later layers are copied.
/// @returns HC_DEADLINE_EXCEEDED if the layer is not there yet; HC_NOT_FOUND if a page of the load
/// failed, so that the layer will never be complete (the completion says more); HC_UNKNOWN_ID if
/// the ticket is not a load of this offload, or its completion was taken; HC_INVALID_ARGUMENT
int32_t hc_offload_wait_layer(hc_offload* offload, hc_ticket ticket, uint32_t layer,
                              uint32_t timeout_ms);

/// The same for a CUDA stream: work queued on it from now on waits on the device. The caller waits,
/// up to `timeout_ms`, only until the pages are verified and the copies are queued. A copy that
/// fails later is reported in the completion.
/// @param stream A cudaStream_t of the layout's device.
/// @returns as hc_offload_wait_layer(); HC_IO_FAILURE; HC_UNSUPPORTED for HC_HOST
int32_t hc_offload_stream_wait(hc_offload* offload, hc_ticket ticket, uint32_t layer, void* stream,
                               uint32_t timeout_ms, hc_error* error);

#ifdef __cplusplus
}
#endif

#endif
