// hicache for programs in C, and in what can call C: pages of bytes in the memory of this host's
// hicache-node, or of another host's. docs/c-abi.md explains it; this header is the contract.
//
// Calls. hc_put, hc_get, hc_lookup, hc_prefetch, hc_pin, hc_remove, hc_offload_store and
// hc_offload_load take a batch of pages, return at once with a ticket, and complete later:
// hc_event_fd() is readable as long as completions wait, hc_poll() takes them, hc_wait() waits for
// one of them. Nothing else is called back but the log.
//
// Errors. What can fail returns an hc_code, 0 for success, and, where there is an hc_error*, tells
// in a sentence what was wrong and what was expected. A program must take a code that it does not
// know as a failure; later versions have more.
//
// Threads. A client may be used by any number of threads at a time; all calls but those that are
// said to wait return at once.
//
// fork(). A child must not use what its parent opened: each call there returns HC_FORKED and
// changes nothing. It can open a client of its own. As long as a child neither ends nor calls exec,
// it keeps the connection of its parent open.
//
// Structs. Those that are passed one by one begin with `size`, to be set to their sizeof; bytes
// beyond what the library knows must be 0. Those that are passed in arrays have reserved room
// instead, which must be 0. So both can grow, and old programs go on.
#ifndef HICACHE_H
#define HICACHE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// What this header was written for; hc_abi_version() tells what the library offers, at least that.
#define HC_ABI_VERSION 1

/// Pages in one call, at most.
#define HC_MAX_PAGES 4096

/// What calls and pages come to.
enum hc_code {
  HC_OK = 0,
  /// A value is not allowed; the sentence says which.
  HC_INVALID_ARGUMENT = 1,
  /// A ticket that is not open, or not any more.
  HC_UNKNOWN_ID = 4,
  /// The node does not have the page.
  HC_NOT_FOUND = 7,
  /// The page did not verify: a miss.
  HC_CORRUPT_PAGE = 8,
  /// The time was over first.
  HC_DEADLINE_EXCEEDED = 9,
  /// The node has no room, and nothing that it may evict.
  HC_STORE_FULL = 10,
  /// The operating system refused something.
  HC_IO_FAILURE = 11,
  /// The node is not there. The client tries again by itself with the calls that follow.
  HC_PEER_UNREACHABLE = 12,
  /// The node, or whoever is at the socket, sent what cannot be understood.
  HC_MALFORMED_MESSAGE = 13,
  /// Too many open calls, or more than the share of this client or its tenant at the node.
  HC_LIMIT_REACHED = 14,
  /// The library or the node is too old for this.
  HC_UNSUPPORTED = 15,
  /// The client is being closed.
  HC_STOPPING = 16,
  /// The client belongs to another process, from which this one was forked.
  HC_FORKED = 1000,
  HC_OUT_OF_MEMORY = 1001,
  /// A mistake in hicache. The client can be used further, or closed.
  HC_INTERNAL = 1002
};

/// Flags of hc_call.
enum hc_flag {
  /// Each page follows on from the one before, and none behind the first that is missing is of use.
  /// For hc_prefetch and hc_pin.
  HC_CHAIN = 1,
  /// For hc_pin: verifies all bytes, so that they can be read in place.
  HC_IN_PLACE = 2
};

/// How much a line of the log matters.
enum hc_level { HC_DEBUG = 1, HC_INFO = 2, HC_WARNING = 3, HC_ERROR = 4 };

/// A connection to a node, with its threads.
typedef struct hc_client hc_client;

/// Pages that the node keeps where they are, and as they are, until hc_unpin(), the end of the
/// lease's time or of the client.
typedef struct hc_lease hc_lease;

/// A call that was begun. Never 0, and never used again by the same client.
typedef uint64_t hc_ticket;

/// The name of a page. Names have to be spread evenly, so use digests: hc_names() makes some of any
/// bytes.
typedef struct hc_key {
  uint8_t bytes[32];
} hc_key;

typedef struct hc_error {
  /// An hc_code.
  int32_t code;
  /// A sentence, cut off if it is too long; empty if there is nothing to say.
  char text[252];
} hc_error;

/// Memory of the caller. It must stay where it is until the call has completed.
typedef struct hc_part {
  /// Only read by hc_put. NULL if there are no bytes.
  void* data;
  size_t bytes;
} hc_part;

/// One page of hc_put or hc_get.
typedef struct hc_page {
  hc_key key;
  /// For hc_put: the page before it, all zero for a first page. The node evicts no page before
  /// those that follow it.
  hc_key parent;
  /// The page's bytes are those of the parts, one behind the other. The array is not used after the
  /// call has returned.
  const hc_part* parts;
  size_t part_count;
  uint64_t reserved[2];
} hc_page;

/// How a batch is to be done.
typedef struct hc_call {
  size_t size;
  /// Of enum hc_flag.
  uint32_t flags;
  /// How long it may take, from now on. An hour at most; longer times count as an hour.
  uint32_t timeout_ms;
  /// Comes back with the completion.
  void* user;
  /// NULL, or room for an hc_code of each page, which is there when the call has completed.
  int32_t* codes;
  /// For hc_get and hc_offload_load: read these pages and no others, without asking the node; else
  /// NULL.
  hc_lease* lease;
} hc_call;

/// What became of a call.
typedef struct hc_completion {
  hc_ticket ticket;
  /// Of hc_call.
  void* user;
  /// Of hc_pin, if it pinned something; else NULL.
  hc_lease* lease;
  /// How many pages are HC_OK: stored, read, there, pinned or removed.
  uint32_t pages;
  /// How many of them come before the first that is not.
  uint32_t prefix;
  /// Of the first page that failed otherwise than with HC_NOT_FOUND; HC_OK if none did.
  hc_error error;
  uint64_t reserved[4];
} hc_completion;

/// A page of a lease.
typedef struct hc_leased_page {
  /// The bytes, if the lease was made with HC_IN_PLACE; else, and if the page was not pinned, NULL.
  const void* data;
  /// 0 if the page was not pinned.
  size_t bytes;
  uint64_t reserved[2];
} hc_leased_page;

/// What a client did since it was opened, and where it stands.
typedef struct hc_counters {
  size_t size;
  /// 1 if the last answer came from the node, 0 if there was none yet or the node could not be
  /// reached.
  uint64_t connected;
  /// Calls that have not completed, and completions that wait for hc_poll or hc_wait.
  uint64_t open_calls;
  uint64_t completions;
  uint64_t leases;
  /// Of hc_put: pages that are in the node now, stored by this call or before, and their bytes.
  uint64_t pages_put;
  uint64_t bytes_put;
  /// Of hc_get.
  uint64_t pages_got;
  uint64_t bytes_got;
  /// Pages of hc_get that the node did not have, and those that did not verify.
  uint64_t pages_missed;
  uint64_t pages_corrupt;
  /// Pages of hc_put and hc_get that failed for any other reason.
  uint64_t pages_failed;
} hc_counters;

/// What a node says of itself.
typedef struct hc_node_state {
  size_t size;
  uint64_t clients;
  /// The memory, what of it holds pages, and how many pages it has.
  uint64_t capacity_bytes;
  uint64_t used_bytes;
  uint64_t pages;
  /// What clients are writing, and what they have leased.
  uint64_t reserved_bytes;
  uint64_t leased_bytes;
  uint64_t reservations;
  uint64_t leases;
  /// Since the node's start.
  uint64_t pages_evicted;
  uint64_t pages_written;
  uint64_t pages_wanted;
  uint64_t pages_found;
  uint64_t expired_leases;
  uint64_t refused_calls;
} hc_node_state;

/// Takes a line of the log, without an end of line. Called by threads of hicache, several at a
/// time, and by those that are in hc_connect() or hc_node_status(). Must not call hicache, and must
/// return soon.
typedef void (*hc_log)(void* user, int32_t level, const char* text);

typedef struct hc_options {
  size_t size;
  /// NULL: nothing is logged. Must be callable until hc_close has returned.
  hc_log log;
  void* log_user;
} hc_options;

/// The number of the ABI that this library offers: programs built for it or for a smaller one work.
uint32_t hc_abi_version(void);

/// The version of hicache, such as "0.1.0". Lasts as long as the library.
const char* hc_version(void);

/// The name of a code, such as "not_found"; "unknown" if it is none. Lasts as long as the library.
const char* hc_code_name(int32_t code);

/// What a code means, as a sentence without a full stop. Lasts as long as the library.
const char* hc_code_sentence(int32_t code);

/// Opens a client. The node need not be there: the client connects with the first call.
/// The configuration is a JSON object in UTF-8:
/// - "socket": where the node of this host listens, a path; or instead of it
/// - "address": where the node of another host listens, HOST:PORT. Bytes travel in messages, and
///   pages that are pinned are copied into memory of the lease, so they stay whatever becomes of
///   the node.
/// - "tls_cert", "tls_key", "tls_ca": for an address, files in PEM: this client's certificate, its
///   key, and the certificate of the authority that signed the node's. All three, or none for a
///   node without TLS.
/// - "namespace": whatever makes pages differ that have the same key: model, dtype, layout, rank.
/// - "tenant": whose share at the node this client counts for; everybody's without a tenant if
///   absent.
/// - "threads": how many batches are done at a time, 1 to 64; 4 if absent.
/// - "calls": how many calls may be open at a time, with those whose completions were not taken;
///   1024 if absent.
/// - "lease_ms": how long pages are pinned; as long as the node allows if absent.
///
/// Signals, and the caller's signal mask, stay as they are; threads of hicache take no signals.
/// @param options NULL, or the log.
/// @param client Set on success; closed by hc_close().
int32_t hc_open(const char* config_json, const hc_options* options, hc_client** client,
                hc_error* error);

/// Closes a client, and ends its leases and offloads. Calls that are open end: those that have not
/// begun do not, and those that wait for the node wait no more. When this has returned, no memory
/// of the caller is used any more, and completions that were not taken are lost. Threads that wait
/// in hc_poll() or hc_wait() get HC_STOPPING; no other call may be under way. Waits for batches
/// that are being copied.
int32_t hc_close(hc_client* client);

/// Connects to the node, for those who want to know early. Waits up to that time.
int32_t hc_connect(hc_client* client, uint32_t timeout_ms, hc_error* error);

/// Makes keys of any bytes: SHA-256 over the client's namespace and them. Different for each
/// namespace.
/// @param names One behind the other. May be NULL if they have no bytes.
/// @param lengths How many bytes each of them has. May be NULL if count is 0, as may keys.
/// @param keys As many as there are names.
int32_t hc_names(const hc_client* client, const void* names, const size_t* lengths, size_t count,
                 hc_key* keys);

/// Stores pages. What the node has, or what another client is writing, is not written again, and
/// counts as stored. A page is there whole or not at all. Pages: HC_STORE_FULL, HC_LIMIT_REACHED,
/// HC_PEER_UNREACHABLE, HC_DEADLINE_EXCEEDED (it may be stored all the same).
/// @param ticket Set on success.
int32_t hc_put(hc_client* client, const hc_page* pages, size_t count, const hc_call* call,
               hc_ticket* ticket, hc_error* error);

/// Reads pages into the parts, and verifies each. Pages of other hosts are brought to the node
/// first, as long as there is time. Pages: HC_NOT_FOUND, HC_CORRUPT_PAGE, HC_INVALID_ARGUMENT (the
/// parts have not the page's length), HC_LIMIT_REACHED, HC_PEER_UNREACHABLE, HC_DEADLINE_EXCEEDED.
/// The parts of a page that is not HC_OK hold unspecified bytes.
int32_t hc_get(hc_client* client, const hc_page* pages, size_t count, const hc_call* call,
               hc_ticket* ticket, hc_error* error);

/// Which pages the node has now. They may go at any time: pin what has to stay.
int32_t hc_lookup(hc_client* client, const hc_key* keys, size_t count, const hc_call* call,
                  hc_ticket* ticket, hc_error* error);

/// Brings pages of other hosts to the node, and says which are there then.
int32_t hc_prefetch(hc_client* client, const hc_key* keys, size_t count, const hc_call* call,
                    hc_ticket* ticket, hc_error* error);

/// Pins pages, after bringing those of other hosts: they stay in the node until the lease ends, but
/// for those that are removed, which can still be read by the lease. What is beyond the share of
/// the client or its tenant is HC_NOT_FOUND.
int32_t hc_pin(hc_client* client, const hc_key* keys, size_t count, const hc_call* call,
               hc_ticket* ticket, hc_error* error);

/// Removes pages of this client's namespace from the node. A page that is not there counts as
/// removed.
int32_t hc_remove(hc_client* client, const hc_key* keys, size_t count, const hc_call* call,
                  hc_ticket* ticket, hc_error* error);

/// The pages of a lease, in the order of the keys that were pinned.
/// @param left_ms NULL, or set to how long the lease still lasts. From its end on the bytes in
/// place may be another page's: whoever is still reading must not use what it read.
int32_t hc_lease_pages(const hc_lease* lease, size_t first, size_t count, hc_leased_page* pages,
                       uint32_t* left_ms);

/// Ends a lease. Calls of hc_get that use it are done to their end. Waits for nobody.
int32_t hc_unpin(hc_lease* lease);

/// Readable exactly as long as completions wait. Belongs to the client; must not be read or closed.
/// -1 if there is no such client.
int hc_event_fd(const hc_client* client);

/// Takes completions, waiting up to that time for the first one.
/// @param count Set to how many there are; 0 is no error.
int32_t hc_poll(hc_client* client, hc_completion* completions, size_t capacity, uint32_t timeout_ms,
                size_t* count);

/// Waits for one call up to that time, and takes its completion: for programs that do one thing
/// after the other. Not for tickets that another thread may take by hc_poll().
/// @returns HC_DEADLINE_EXCEEDED if the call has not completed: it goes on; HC_UNKNOWN_ID
int32_t hc_wait(hc_client* client, hc_ticket ticket, uint32_t timeout_ms,
                hc_completion* completion);

/// What this client did.
/// @pre counters->size is set
int32_t hc_stats(const hc_client* client, hc_counters* counters);

/// Asks the node how it is. Waits up to that time.
/// @pre state->size is set
int32_t hc_node_status(hc_client* client, uint32_t timeout_ms, hc_node_state* state,
                       hc_error* error);

// Offload: an engine keeps its blocks and their table; hicache copies blocks between the engine's
// memory and the node. Any thread, as for the calls above.

/// Devices of hc_layout: this, or the number of a CUDA device.
enum hc_device { HC_HOST = -1 };

/// In place of a block's number in a page of hc_offload_load: this block is not wanted.
#define HC_NO_BLOCK UINT32_MAX

/// Blocks of an engine, with their tensors.
typedef struct hc_offload hc_offload;

/// What one layer keeps in the blocks, or a part of it: the keys, the values.
typedef struct hc_tensor {
  /// Of block 0.
  void* data;
  /// How many there are.
  uint64_t blocks;
  /// From the first byte of a block to that of the next.
  uint64_t stride;
  /// Of a block; what is between it and the next is left alone.
  uint64_t block_bytes;
  /// The layers from 0 on, in order; each has one tensor or several.
  uint64_t layer;
  uint64_t reserved[2];
} hc_tensor;

/// An engine's blocks. A block has a piece in each tensor. The bytes of a page are those of its
/// blocks' pieces: layer by layer, tensor by tensor, block by block. So what makes these differ has
/// to be in the namespace of the client.
typedef struct hc_layout {
  size_t size;
  /// HC_HOST or the number of a CUDA device.
  int32_t device;
  uint32_t blocks_per_page;
  /// Not used after the call has returned; the memory that they name is, until hc_offload_close().
  const hc_tensor* tensors;
  size_t tensor_count;
} hc_layout;

/// One page of hc_offload_store or hc_offload_load.
typedef struct hc_offload_page {
  hc_key key;
  /// As in hc_page, for hc_offload_store.
  hc_key parent;
  /// As many as a page has. The array is not used after the call has returned.
  const uint32_t* blocks;
  uint64_t reserved[2];
} hc_offload_page;

/// Opens an offload: checks the layout. Nothing is copied.
/// @param offload Set on success; closed by hc_offload_close(), or with the client.
/// @returns HC_UNSUPPORTED if this library cannot copy blocks of that device
int32_t hc_offload_open(hc_client* client, const hc_layout* layout, hc_offload** offload,
                        hc_error* error);

/// Closes an offload. Waits for its open calls. When this has returned, the engine's memory is not
/// used any more. No other call with this offload may be under way.
int32_t hc_offload_close(hc_offload* offload);

/// How long a page of this layout is. 0 if there is no such offload.
uint64_t hc_offload_page_bytes(const hc_offload* offload);

/// Stores blocks as pages: hc_put, with all that it says. They must not change until the call has
/// completed.
/// @param event NULL, or a cudaEvent_t after which the blocks are complete, recorded before. The
/// copies wait for it, not the caller. NULL for HC_HOST.
int32_t hc_offload_store(hc_offload* offload, const hc_offload_page* pages, size_t count,
                         const hc_call* call, void* event, hc_ticket* ticket, hc_error* error);

/// Loads pages into blocks: first all bytes of all pages are verified, then they are copied layer
/// by layer. Pages as for hc_get, HC_INVALID_ARGUMENT if the page's length is not that of the
/// layout. The blocks of a page that is not HC_OK stay as they are, unless `error` says that the
/// lease was over, or what CUDA said: then they hold unspecified bytes.
int32_t hc_offload_load(hc_offload* offload, const hc_offload_page* pages, size_t count,
                        const hc_call* call, hc_ticket* ticket, hc_error* error);

/// Waits up to that time until a layer of all pages of a load is in their blocks, so that an engine
/// can compute with it while the next ones are copied.
/// @returns HC_DEADLINE_EXCEEDED if it is not there yet; HC_NOT_FOUND if a page of the load failed,
/// so that the layer will never be there for all of them: the completion says more; HC_UNKNOWN_ID
/// if this is no load of this offload whose completion was not taken; HC_INVALID_ARGUMENT
int32_t hc_offload_wait_layer(hc_offload* offload, hc_ticket ticket, uint32_t layer,
                              uint32_t timeout_ms);

/// The same for a CUDA stream: what is queued on it from now on waits on the device. The caller
/// waits, up to that time, until the pages are verified and the copies are queued. If a copy fails
/// after that, the completion says so.
/// @param stream A cudaStream_t of the layout's device.
/// @returns as hc_offload_wait_layer(); HC_IO_FAILURE; HC_UNSUPPORTED for HC_HOST
int32_t hc_offload_stream_wait(hc_offload* offload, hc_ticket ticket, uint32_t layer, void* stream,
                               uint32_t timeout_ms, hc_error* error);

#ifdef __cplusplus
}
#endif

#endif
