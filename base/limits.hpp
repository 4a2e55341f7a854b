#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

/// Fixed bounds of the runtime, with the reason for each value.
namespace hicache::limits {

/// Pages per call between members, and of a node's disk and fetches. For those of a rank to L3 see
/// storage_traffic.
inline constexpr size_t storage_batch_pages = 128;

/// Batches queued in front of one storage backend; further ones fail with limit_reached. A store
/// that far behind is of no use to a waiting request.
inline constexpr size_t storage_queue_batches = 1024;

/// Prefetches whose hit length one reduction covers (fixed size of the window).
inline constexpr size_t hit_window_size = 32;

/// Engine events that copies may have to wait for at once: far more than the kernels an engine
/// queues ahead. At the bound, the newest event stands for later ones.
inline constexpr size_t page_fences_open = 1024;

/// Consecutive failed copies between L1 and L2 before a rank counts as unable to copy: more than
/// one bad page causes, few enough not to spend a minute on failing loads.
inline constexpr uint32_t copy_failures_in_a_row = 8;

/// Prefetches, and backups, that one step can end. Sizes the step's vector (5.6 KiB in all); each
/// takes longer than a step. Backups end in order; if more prefetches are open, they take turns.
inline constexpr size_t step_fetches = 64;
inline constexpr size_t step_backups = 64;

/// Longest interval between reductions while something is pinned or has changed but nothing is in
/// flight: pins end, and divergence is detected, that late. The second bound counts the steps
/// without a reduction in between, for an engine that suddenly becomes slow.
inline constexpr auto comparison_time = std::chrono::seconds{1};
inline constexpr uint64_t steps_uncompared = 8;

/// Tiers of a tiered L3: twice as many as memory, disk, a cache on the network and an object store.
/// Each costs 0.5 KiB of the step's vector.
inline constexpr size_t storage_tiers = 8;

/// Interval between reads that only measure an L3 from which nothing is taken, because computing is
/// faster: often enough to notice soon that it has become faster, too rare to matter to it.
inline constexpr auto load_probe_interval = std::chrono::seconds{5};

/// Open prefetches per rank. More would only queue behind the store.
inline constexpr size_t prefetches_open = 4096;

/// Bytes of an operator's request to attach a store, and the 64-bit words, of seven bytes each, in
/// which it travels between ranks.
inline constexpr size_t attachment_text = 7000;
inline constexpr size_t attachment_words = 1024;

/// How long a terminating rank waits for the other ranks to terminate before it gives up the
/// communicator on which changes of L3 are agreed.
inline constexpr auto end_of_changes = std::chrono::seconds{2};

/// Fraction of a full L2 (one page in so many) that stages new pages for L3: it holds their copies
/// only until L3 has them. It costs 1 % of the pages that could hit. Of 24576 pages that is 256:
/// two storage batches, so that one is ready while the store writes the other.
inline constexpr uint64_t staging_part = 96;

/// Paths waiting to be staged. Beyond it the oldest is dropped: it is written to L3 when it leaves
/// L1 or is used again.
inline constexpr size_t unstaged_paths = 65536;

/// Objects whose uses a tiered store counts, in each of two generations (25 MiB together): pages of
/// some hundred long prompts, after which a use is no sign of another one.
inline constexpr size_t tier_history = size_t{1} << 18;

/// Requests of an engine that may hold locks at once.
inline constexpr size_t requests_open = 65536;

/// Open sessions of an engine; SGLang remembers as many closed ones.
inline constexpr size_t sessions_open = 8192;

/// Locks by node handle: as many as requests, which hold one lock each.
inline constexpr size_t handle_locks = requests_open;

/// Batches of operations deferred by an open step. An engine needs only a few.
inline constexpr size_t deferred_batches = 256;

/// Batches of an op log that wait for the disk. At the bound, recording stops and serving goes on:
/// the backlog would take unbounded memory.
inline constexpr size_t unrecorded_batches = 4096;

/// Pages and tokens per router event. SGLang's router refuses larger ones.
inline constexpr size_t router_event_pages = 65536;
inline constexpr size_t router_event_tokens = size_t{1} << 20;

/// Event batches waiting to be published. Further ones are dropped, because the backlog would take
/// unbounded memory; routers notice by the gap in the sequence numbers.
inline constexpr size_t unpublished_batches = 4096;

/// Messages the network keeps for each slow router (SGLang's number); further ones are dropped.
inline constexpr int router_messages = 100'000;

/// Tokens per request. Larger than any context window in use (2026); page counts fit 32 bits.
inline constexpr size_t request_tokens = size_t{1} << 27;

/// Pages per pool: page numbers have 32 bits and leave the sign bit free.
inline constexpr uint64_t pool_pages = uint64_t{1} << 31;

/// Largest page object. A 64-token page of an 80-layer, 8-head, 128-wide fp16 model is 20 MiB on
/// one rank; more than 16 times that is a corrupt length.
inline constexpr uint64_t page_bytes = uint64_t{320} << 20;

/// Keys per index message: a multiple of the storage batch, to keep block reports short.
inline constexpr size_t index_batch_keys = 4096;

/// How long a leaving member waits for the index to receive its notification. Otherwise the index
/// notices later that it is gone, and copies are re-replicated later.
inline constexpr auto leave_time = std::chrono::milliseconds{500};

/// Changed keys recorded for an unreachable index shard (2 MiB); beyond that, reports all pages.
inline constexpr size_t unsettled_keys = 16 * index_batch_keys;

/// 64-bit words a Cap'n Proto reader may traverse per message: index_batch_keys keys of 40 words,
/// and headroom. Control messages carry descriptors, never page bytes.
inline constexpr uint64_t wire_words = 40 * index_batch_keys + 1024;

/// Shards of the index. A lookup ranks all shards for each key; a shard serves some 100,000 per
/// second.
inline constexpr size_t index_shards = 256;

/// How long a lookup waits for a key's first keeper before it asks the second one: several times
/// the latency of a shard that is processing a block report.
inline constexpr auto lookup_hedge = std::chrono::milliseconds{200};

/// How long the other keepers are asked first after that. The connection detects a hanging shard
/// within seconds; until then it delays one lookup per process and second.
inline constexpr auto slow_shard_pause = std::chrono::seconds{1};

/// Time after which a shard that has not answered a lookup counts as lost. A shorter deadline of
/// the caller is not enough, because reconnecting means mounting and reporting again.
inline constexpr auto shard_answer_time = std::chrono::seconds{5};

/// Replicas of a departed member that a shard removes between two messages: some tens of
/// microseconds, no more than a lookup takes.
inline constexpr size_t index_expiry = 256;

/// Pause between two such removals. The memory is not urgent; but on a machine with few cores
/// lookups wait for the processor, and their p99 was four times as long without a pause.
inline constexpr auto index_expiry_pause = std::chrono::milliseconds{1};

/// Members per index shard.
inline constexpr size_t index_members = 65536;

/// Replicas recorded per key; more copies bring nothing and cost index memory.
inline constexpr size_t replicas_per_key = 8;

/// Members described per message: half a message with the longest names (165 words per member).
inline constexpr uint32_t members_listed = 512;

/// How long the list of all members stays cached for placing copies: it is needed for each batch of
/// pages and takes ten megabytes for the largest cluster.
inline constexpr auto member_list_memory = std::chrono::seconds{2};

/// Pages re-replicated per pass, with one look at the member list.
inline constexpr size_t repair_pages = 4096;

/// Retry pauses for a page that too few members accepted: short at first, as a member may have been
/// busy, then doubling, as memory grows only when operators add it.
inline constexpr auto repair_retry_first = std::chrono::seconds{30};
inline constexpr auto repair_retry_last = std::chrono::minutes{10};

/// Members tried in turn for one copy. If so many are full or unreachable, the cluster is.
inline constexpr size_t copy_targets = 4;

/// Pages per request of a node client: as many as one index message holds.
inline constexpr size_t node_batch_pages = index_batch_keys;

/// Open requests per node client. An engine looks up few requests at a time; more only queue up.
inline constexpr size_t node_client_requests = 64;

/// Pages reserved and leased per node client, and by all clients together: a prompt of a million
/// tokens in pages of 16 has 65536. Each takes some 100 bytes of the node.
inline constexpr size_t node_client_pages = 65536;
inline constexpr size_t node_pages = size_t{1} << 21;

/// Longest wait of a client for pages of other members; below the timeout of a request between
/// processes (rpc/limits.hpp). Pages that arrive later serve the next lookup.
inline constexpr auto node_wait_time = std::chrono::seconds{30};

/// Longest duration of a lease that no lookup renews, and the default of --lease-time. A hanging
/// client keeps its pages from eviction for that long; copying the pages of a lease takes seconds.
inline constexpr auto node_lease_time = std::chrono::minutes{5};

/// Bytes and pages of a node's memory file scanned in one go after a restart: some milliseconds of
/// work, and as many pages as one index message holds.
inline constexpr uint64_t scanned_bytes = uint64_t{64} << 20;
inline constexpr size_t scanned_pages = index_batch_keys;

/// Bytes of one batch of a node's disk tier: some milliseconds of a slow disk.
inline constexpr uint64_t disk_batch_bytes = uint64_t{8} << 20;

/// Requests for pages that a node's disk tier serves at once, and batches that it writes at once:
/// enough to keep a disk busy, and the threads of its store.
inline constexpr size_t disk_fetches = 4;
inline constexpr size_t disk_writes = 2;
inline constexpr size_t disk_threads = disk_fetches + disk_writes;

/// Pages of a cleared namespace that are removed from a node's disk in one go, and pages of its
/// table that are compared with a list.
inline constexpr size_t disk_cleared_pages = 4096;

/// How long a node waits before it lists again a store that does not tell what it evicts, and
/// before each further part of such a list: ten thousand pages a second cost a server little.
inline constexpr auto disk_list_pause = std::chrono::minutes{10};
inline constexpr auto disk_list_part_pause = std::chrono::milliseconds{100};

/// How long a terminating node waits for a hanging disk, which may still use its memory.
inline constexpr auto disk_return_time = std::chrono::hours{1};

/// Pages waiting to be written to a node's disk, some 130 bytes each. Further ones are not written.
inline constexpr size_t disk_waiting_pages = size_t{1} << 20;

/// How long a terminating node keeps writing pending pages to its disk (default of
/// --shutdown-grace).
inline constexpr auto disk_drain_time = std::chrono::seconds{10};

/// Removed pages that may still be found in a memory file, some 100 bytes each. If there are more,
/// pages found from then on are not offered again.
inline constexpr size_t unwanted_pages = size_t{1} << 20;

/// The longest soft pin: a month. Use a hard pin for longer.
inline constexpr auto pin_time = std::chrono::milliseconds{std::chrono::hours{24 * 30}};

/// Uses from which a page is worth migrating when its owner leaves: one may be chance.
inline constexpr uint64_t hot_uses = 2;

/// Bytes per transfer of pages between hosts: coalesces adjacent pages, bounds a reader's staging
/// memory, and keeps it in the CPU cache.
inline constexpr size_t transfer_bytes = size_t{1} << 20;

/// Bytes of a put that are published together, so that the first bytes of a batch travel to other
/// hosts while the rest is written: some milliseconds of copying, beside which a part's messages
/// cost little. Batches of a rank are longer (storage_batch_pages).
inline constexpr uint64_t put_part_bytes = uint64_t{16} << 20;

/// Maximum threads copying one batch of pages from or to mapped memory: one does not saturate the
/// memory bandwidth, four do on most machines.
inline constexpr uint32_t copy_threads = 4;

/// How long a reader waits for an owner on its host to export its memory. The owner answers in
/// microseconds; one that takes seconds hangs, and the page can come from elsewhere.
inline constexpr auto peer_memory_time = std::chrono::seconds{2};

/// Processes on a machine that map one member's memory, each at most twice (it reads, and copies
/// for others): far more than ranks run there. Each holds a descriptor of the owner.
inline constexpr size_t memory_readers = 1024;

/// Clients of a node; each maps its memory.
inline constexpr size_t node_clients = memory_readers;

/// Reconnect pause of a client whose node is unreachable: a restarted node is used within moments,
/// and lookups fail immediately meanwhile.
inline constexpr auto node_pause = std::chrono::milliseconds{250};

/// Slack of a client's timeout over the node's own wait for pages of other members.
inline constexpr auto node_answer_slack = std::chrono::seconds{1};

/// How long a reader waits for an owner's next bytes before it gives the owner up, and for how long
/// it avoids that owner then. An owner answers in milliseconds or is about to expire in the index;
/// meanwhile other pages wait for the reader.
inline constexpr auto read_stall = std::chrono::seconds{3};
inline constexpr auto read_avoidance = std::chrono::seconds{4};

/// How long a reader waits for an owner's next bytes before it requests the same pages from another
/// one and takes the faster answer: several times the latency of an owner on a busy machine.
inline constexpr auto read_hedge = std::chrono::milliseconds{200};

/// Readers to which an owner sends the same page within a moment before it refers others to those
/// that just received it, and the minimum length of that moment. The first reader need not offer
/// the page, the others do: the sources of the page quadruple with each round.
inline constexpr uint32_t demand_serves = 4;
inline constexpr auto demand_moment = std::chrono::milliseconds{500};

/// How long a referred reader waits for other sources before it insists: a reader offers a received
/// page within some milliseconds.
inline constexpr auto demand_wait = std::chrono::milliseconds{200};

/// Pages for whose other sources readers wait, per index shard; further readers insist. Some 100
/// bytes each, and few pages are in demand at a time.
inline constexpr size_t awaited_pages = 65536;

/// Transfers a reader keeps in flight per owner: enough to overlap the owner's copying with the
/// network. The owner closes the connection of a reader that exceeds it.
inline constexpr size_t transfers_in_flight = 4;

/// Ranges per request for bytes. With pages of 1 KiB and more the bytes are the tighter bound; the
/// request stays small (24 KiB).
inline constexpr size_t transfer_ranges = 1024;

/// How long a new connection to an owner may take to identify itself.
inline constexpr auto greeting_time = std::chrono::seconds{5};

/// Unsent bytes that the kernel buffers per page connection: several rounds of the sending thread
/// instead of megabytes for a peer that does not read.
inline constexpr int page_send_bytes = 256 << 10;

/// Bytes of a page that wake its reader: fewer, and a fast sender wakes it for each segment of TCP.
inline constexpr size_t page_receive_bytes = 256 << 10;

/// Keepalive of page connections: time of silence in both directions before the first probe, and
/// the unanswered probes, one second apart, after which the peer counts as gone.
inline constexpr auto silent_peer_time = std::chrono::seconds{5};
inline constexpr auto silent_peer_probes = 3;

/// Connections of an owner's server, and of a reader's client. Times transfers_in_flight they bound
/// the request queue.
inline constexpr size_t page_connections = 1024;

/// How long start-up tries to reach the index before it fails (default of --index-connect-time).
inline constexpr auto index_connect_time = std::chrono::seconds{10};

/// How long a step waits for the slowest rank before it fails with rank_unresponsive.
inline constexpr auto step_timeout = std::chrono::seconds{30};

/// How long a rank spins in a reduction before it pauses: several times the microseconds by which
/// ranks in step differ, and too short to occupy a core.
inline constexpr auto reduction_spin = std::chrono::microseconds{50};

/// Pauses after that: an eighth of the time waited so far, within these bounds. A waiting rank
/// notices a late one after little more than its lateness, at a few percent of a core.
inline constexpr auto reduction_pause_min = std::chrono::microseconds{50};
inline constexpr auto reduction_pause_max = std::chrono::milliseconds{8};

/// Pause while only a change of the storage backend is awaited. That may take as long as the
/// instance lives, so it must cost nothing; an operator requests it, so latency is uncritical.
inline constexpr auto admin_pause = std::chrono::milliseconds{20};

/// Default deadline of a storage batch (--hicache-storage-timeout).
inline constexpr auto storage_timeout = std::chrono::seconds{10};

/// Calls of a store that are past their deadline and have not returned. Each occupies a thread and
/// the pages of a batch; at the bound, nothing is sent to the store until one returns.
inline constexpr size_t stuck_calls = 8;

/// Window of calls of which half have to fail to open a store's breaker: a store with occasional
/// failures (one batch in fifty) does not reach that in years.
inline constexpr uint32_t breaker_window = 32;

/// Pages in a probe batch.
inline constexpr size_t probe_pages = 1;

/// While only quarantined pages are outstanding, one step in so many reduces over whether they are
/// free: some seconds late, at next to no cost.
inline constexpr uint64_t quarantine_steps = 16;

/// How long a terminating rank waits for store calls that have not returned (default of
/// --shutdown-grace), and how much longer until the process exits regardless.
inline constexpr auto shutdown_grace = std::chrono::seconds{3};
inline constexpr auto shutdown_slack = std::chrono::seconds{5};

/// Log events of other processes that the backend `file` applies under its table's lock: some 10
/// ms.
inline constexpr size_t folder_log_events = 100'000;

/// Age at which an unwritten log counts as left by a dead process (a live one notices and begins a
/// new log), and the number of such logs from which one process merges them.
inline constexpr auto folder_log_age = std::chrono::seconds{600};
inline constexpr size_t folder_logs = 64;

/// How long further uses of a page are not logged: others evict by them minutes or days later.
inline constexpr auto folder_use_pause = std::chrono::minutes{1};

/// How long opening a folder waits for its list of pages; loading continues in the background.
inline constexpr auto folder_load_wait = std::chrono::milliseconds{500};

/// Age at which an unfinished file counts as left by a dead process.
inline constexpr auto folder_write_time = std::chrono::hours{1};

/// Attempts to write to a full disk, each after evicting several times the page's size: other
/// processes may take the room.
inline constexpr int full_disk_attempts = 4;

/// Body of an admin request. Settings of L3 take a few hundred bytes.
inline constexpr size_t admin_body_bytes = size_t{64} << 10;

/// A whole admin request: the body, and as much again for headers.
inline constexpr size_t admin_request_bytes = 2 * admin_body_bytes;

/// JSON nesting that the admin server reads. Settings have two levels; the writer is recursive.
inline constexpr int admin_json_levels = 16;

/// How long an admin request may take to arrive; clients send it at once.
inline constexpr auto admin_request_time = std::chrono::seconds{5};

/// Longest deadline of a change of L3. Draining takes seconds; a day is a mistake.
inline constexpr auto admin_change_time = std::chrono::hours{1};

/// Threads that answer admin requests. A change occupies one until it ends; the others refuse
/// further changes and report state.
inline constexpr size_t admin_threads = 4;

/// Connections waiting for these threads; more stay in the system's queue.
inline constexpr size_t admin_connections = 64;

/// How long a metrics scrape waits for actors, and as long for a change of L3, before it leaves out
/// what is missing. Prometheus gives a scrape ten seconds.
inline constexpr auto scrape_time = std::chrono::seconds{1};

/// A text that is part of page names, such as --model-id: revisions and digests take some hundred
/// bytes, RoPE settings with a factor per dimension some thousand.
inline constexpr size_t identity_text_bytes = 4096;

/// Header of a safetensors file: the format's own bound. Models of 2026 have some MiB.
inline constexpr size_t safetensors_header_bytes = 100'000'000;

/// JSON nesting in it: tensors, each tensor's fields, its shape.
inline constexpr int safetensors_levels = 3;

/// A model's config.json and similar files: some KiB each; a larger one is something else.
inline constexpr size_t model_config_bytes = size_t{16} << 20;

/// JSON nesting in them; the JSON writer is recursive.
inline constexpr int model_config_levels = 64;

} // namespace hicache::limits
