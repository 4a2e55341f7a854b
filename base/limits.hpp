#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

/// Every fixed bound of the runtime, with the reason for its value.
namespace hicache::limits {

/// Pages that one storage call carries. SGLang's batch size; large enough to hide a millisecond of
/// latency, small enough that a prefetch can stop soon after it is told to.
inline constexpr size_t storage_batch_pages = 128;

/// Storage batches one prefetch or backup keeps in flight: two for each worker thread that a store
/// has by default, so that the store never waits for us.
inline constexpr size_t storage_batches_in_flight = 4;

/// Batches that may wait in front of one storage backend. Beyond it a batch fails with
/// limit_reached: a store that far behind is of no use to the request that waits.
inline constexpr size_t storage_queue_batches = 1024;

/// Prefetches whose hit length is agreed on in one reduction: the window's fixed
/// size.
inline constexpr size_t hit_window_size = 32;

/// Events of an engine's that copies may have to wait for at once: far more than kernels that an
/// engine queues ahead. Beyond it the newest one stands for those to come.
inline constexpr size_t page_fences_open = 1024;

/// Copies between L1 and L2 that may fail one after the other before a rank is no longer trusted to
/// copy: more than one bad page causes, few enough that no minute is spent on loads that fail.
inline constexpr uint32_t copy_failures_in_a_row = 8;

/// Prefetches, and backups, that one step can end: a step's vector has room for them, 2.1 KiB in
/// all, and each of them takes longer than a step. Backups end in order; where more prefetches are
/// open, they take turns.
inline constexpr size_t step_fetches = 64;
inline constexpr size_t step_backups = 64;

/// How often ranks agree in a step at least while something is pinned or has changed, though
/// nothing is in flight: pins end, and ranks that diverged are found, that much late. And the steps
/// in which they do not agree meanwhile: an engine that becomes slow all at once still agrees soon.
inline constexpr auto comparison_time = std::chrono::seconds{1};
inline constexpr uint64_t steps_uncompared = 8;

/// Prefetches a rank may have open. More would only queue behind the store.
inline constexpr size_t prefetches_open = 4096;

/// What an operator's request to attach a store may say, in bytes; and the 64-bit words, of seven
/// bytes each, in which it travels between ranks.
inline constexpr size_t attachment_text = 7000;
inline constexpr size_t attachment_words = 1024;

/// How long a rank that ends waits for the others to end, too, before it gives up the communicator
/// on which changes of L3 are agreed.
inline constexpr auto end_of_changes = std::chrono::seconds{2};

/// How often a failed write to L3 is tried before it is given up, and the pause before the second
/// time, which then doubles: 1.5 s in all, longer than a store takes to restart a connection and
/// short enough that L2 pages are not kept from eviction for long.
inline constexpr uint32_t backup_attempts = 5;
inline constexpr auto backup_pause = std::chrono::milliseconds{100};

/// The part of a full L2 (one in so many pages) that holds copies of new pages only until L3 has
/// them. What it holds is lost for hits: 1 %. Of 24576 pages that is 256, two storage batches, so
/// that the store has one at hand while it writes the other.
inline constexpr uint64_t staging_part = 96;

/// Paths that wait for their turn there. Beyond it the oldest is forgotten: it goes to L3 when it
/// leaves L1 or is used again.
inline constexpr size_t unstaged_paths = 65536;

/// Requests an engine may hold locks for at once.
inline constexpr size_t requests_open = 65536;

/// Sessions an engine may have open at once; SGLang remembers as many closed ones.
inline constexpr size_t sessions_open = 8192;

/// Locks by node handle; as many as requests, which hold one lock each.
inline constexpr size_t handle_locks = requests_open;

/// Batches of operations that may wait behind an open step; an engine has no use for more than a
/// few.
inline constexpr size_t deferred_batches = 256;

/// Batches of an op log that wait for the disk. A disk that far behind would cost memory without
/// end: recording stops, serving goes on.
inline constexpr size_t unrecorded_batches = 4096;

/// Pages, and tokens, in one event for routers: SGLang's router refuses larger ones.
inline constexpr size_t router_event_pages = 65536;
inline constexpr size_t router_event_tokens = size_t{1} << 20;

/// Batches of events that wait to be published. Whoever is that far behind would take memory
/// without end: further ones are left out, which routers see by the gap in their numbers.
inline constexpr size_t unpublished_batches = 4096;

/// Messages that the network may keep for each router that reads too slowly (SGLang's number);
/// further ones are left out for it.
inline constexpr int router_messages = 100'000;

/// Tokens of one request. Larger than any context window in use (2026), small enough that page
/// counts fit 32 bits.
inline constexpr size_t request_tokens = size_t{1} << 27;

/// Pages of one pool; page numbers are 32 bits wide and the sign bit stays free.
inline constexpr uint64_t pool_pages = uint64_t{1} << 31;

/// Largest page object. A 64-token page of an 80-layer, 8-head, 128-wide fp16 model is 20 MiB on
/// one rank; 16 times that is a corrupt length.
inline constexpr uint64_t page_bytes = uint64_t{320} << 20;

/// Keys in one index message: a multiple of the storage batch, so that a block report needs few
/// messages.
inline constexpr size_t index_batch_keys = 4096;

/// How long a member that ends waits for the index to hear of it. Else its end is noticed, and its
/// copies elsewhere are made anew later.
inline constexpr auto leave_time = std::chrono::milliseconds{500};

/// Keys that a member notes for a shard of the index that it has lost, 2 MiB; when more change
/// meanwhile it reports all pages.
inline constexpr size_t unsettled_keys = 16 * index_batch_keys;

/// 64-bit words a Cap'n Proto reader may traverse for one message: index_batch_keys keys of 40
/// words, and headroom. Control messages carry descriptors, never page bytes.
inline constexpr uint64_t wire_words = 40 * index_batch_keys + 1024;

/// Shards of the index. Every lookup ranks each of them for each key; a shard serves some 100,000
/// lookups a second.
inline constexpr size_t index_shards = 256;

/// How long a look-up waits for a key's keeper before it asks the other one: some times what a
/// shard takes that is busy with a block report.
inline constexpr auto lookup_hedge = std::chrono::milliseconds{200};

/// For how long the others are asked first then. One that hangs is found out by its connection
/// within seconds; until then it costs one look-up of each process and second that wait.
inline constexpr auto slow_shard_pause = std::chrono::seconds{1};

/// What a shard may take to answer a look-up before it counts as lost; who connects to it again
/// mounts and reports anew, so a caller's short deadline must not be enough.
inline constexpr auto shard_answer_time = std::chrono::seconds{5};

/// Replicas of a member that is gone that a shard removes before it looks at its next message: some
/// tens of microseconds, no more than a lookup takes.
inline constexpr size_t index_expiry = 256;

/// Between two such parts. Nobody waits for that memory; but on a machine with few cores look-ups
/// wait for the processor, and their p99 was four times as long without a pause.
inline constexpr auto index_expiry_pause = std::chrono::milliseconds{1};

/// Members an index shard accepts.
inline constexpr size_t index_members = 65536;

/// Replicas remembered per key; more copies of a page bring nothing and cost index memory.
inline constexpr size_t replicas_per_key = 8;

/// Members that one message describes: with the longest names there are (165 words a member) half a
/// message.
inline constexpr uint32_t members_listed = 512;

/// How long who places copies remembers the list of all members: it asks for each batch of pages,
/// and of the largest cluster the list has ten megabytes.
inline constexpr auto member_list_memory = std::chrono::seconds{2};

/// How long after a member has heard of lost copies they are made anew: the index waits its member
/// ttl before it says so, but not for a member that mounts anew and reports all its pages.
inline constexpr auto repair_delay = std::chrono::seconds{5};

/// Pages whose copies are made anew in one go, on one look at the list of members; and the bytes of
/// them a second that one member has others read from it: an eighth of a 10 Gbit/s adapter, so that
/// pages that requests wait for come first.
inline constexpr size_t repair_pages = 4096;
inline constexpr uint64_t repair_bytes_per_second = uint64_t{160} << 20;

/// When a page whose lost copies too few members took is tried again: soon, as one may have been
/// busy, then with doubled pauses, as more memory comes when people add it.
inline constexpr auto repair_retry_first = std::chrono::seconds{30};
inline constexpr auto repair_retry_last = std::chrono::minutes{10};

/// Members that are asked in turn to take a page: where so many are full or do not answer, the
/// cluster is.
inline constexpr size_t copy_targets = 4;

/// How long, and of how many pages, a reader remembers where the index said that they are: who asks
/// whether a page is there reads it within milliseconds. What moved or went meanwhile costs a look
/// at its old place. Some 200 bytes each.
inline constexpr auto placement_memory = std::chrono::seconds{1};
inline constexpr size_t placements_remembered = 16384;

/// Pages that a client of a node names in one request: as many as one message to the index has.
inline constexpr size_t node_batch_pages = index_batch_keys;

/// Requests that a client of a node may have open. An engine asks for some requests of its users at
/// a time; more only wait behind each other.
inline constexpr size_t node_client_requests = 64;

/// Pages that a client of a node may have reserved and leased at a time, and all clients together:
/// a prompt of a million tokens in pages of 16 has 65536. Each takes some 100 bytes of the node.
inline constexpr size_t node_client_pages = 65536;
inline constexpr size_t node_pages = size_t{1} << 21;

/// How long a client waits at most for pages that other members have; below what a request between
/// processes may take (rpc/limits.hpp). Pages that come later are there for the next look-up.
inline constexpr auto node_wait_time = std::chrono::seconds{30};

/// How long a lease lasts at most without being renewed by another look-up. A client that hangs
/// keeps its pages from eviction for that long; copying the pages of a lease takes seconds.
inline constexpr auto node_lease_time = std::chrono::minutes{5};

/// Bytes and pages of a node's memory file that are looked at in one go, after a restart: some
/// milliseconds of work, and as many pages as one message to the index has.
inline constexpr uint64_t scanned_bytes = uint64_t{64} << 20;
inline constexpr size_t scanned_pages = index_batch_keys;

/// Bytes that a node's disk tier reads or writes in one go: some milliseconds of a slow disk, in
/// which nobody else is served.
inline constexpr uint64_t disk_batch_bytes = uint64_t{8} << 20;

/// Pages that wait to be written to a node's disk, of some 130 bytes each. More are not written.
inline constexpr size_t disk_waiting_pages = size_t{1} << 20;

/// How long a node that ends goes on writing to its disk what waits for that.
inline constexpr auto disk_drain_time = std::chrono::seconds{10};

/// Pages that were removed while they may still be found in a memory file, of some 100 bytes each.
/// If there are more, nothing that is found from then on is offered again.
inline constexpr size_t unwanted_pages = size_t{1} << 20;

/// The longest soft pin: a month. Who wants more wants a hard one.
inline constexpr auto pin_time = std::chrono::milliseconds{std::chrono::hours{24 * 30}};

/// Uses from which a page is worth moving when its owner leaves: one may be chance.
inline constexpr uint64_t hot_uses = 2;

/// Bytes of one transfer of pages between hosts: coalesces neighbouring pages, bounds the staging
/// memory of a reader, and lets that memory stay in the processor's cache.
inline constexpr size_t transfer_bytes = size_t{1} << 20;

/// Threads that copy one batch of pages out of mapped memory or into it, at most: one does not use
/// up the memory's bandwidth, four do on most machines.
inline constexpr uint32_t copy_threads = 4;

/// How long a reader waits for an owner on its host to hand out its memory. The owner answers in
/// microseconds; one that takes seconds hangs, and the page can come from elsewhere.
inline constexpr auto peer_memory_time = std::chrono::seconds{2};

/// Processes of a machine that map the memory of one member, each twice at most (it reads, and
/// copies for others): far more than ranks run there. Each keeps a descriptor of the owner.
inline constexpr size_t memory_readers = 1024;

/// Clients of a node: each maps its memory.
inline constexpr size_t node_clients = memory_readers;

/// After how long a client whose node is not there tries again: a node that is restarted is used
/// within moments, and look-ups meanwhile fail without a wait.
inline constexpr auto node_pause = std::chrono::milliseconds{250};

/// How much longer than the node may wait for pages of others a client waits for its answer.
inline constexpr auto node_answer_slack = std::chrono::seconds{1};

/// How long a reader waits for the next bytes of an owner before it gives the owner up, and for how
/// long it then does not ask it again. An owner answers in milliseconds, or is about to be
/// forgotten by the index; other pages wait for the reader meanwhile.
inline constexpr auto read_stall = std::chrono::seconds{3};
inline constexpr auto read_avoidance = std::chrono::seconds{4};

/// How long a reader waits for the next bytes of an owner before it asks another one for the same
/// pages, and takes them from whoever is faster: some times what an owner takes on a busy machine.
inline constexpr auto read_hedge = std::chrono::milliseconds{200};

/// To how many readers an owner sends the same page within a moment before it refers others to
/// those that just got it, and how long the moment is, at least. The first reader need not offer
/// the page, the others do: the places to read it from become four times as many with each round.
inline constexpr uint32_t demand_serves = 4;
inline constexpr auto demand_moment = std::chrono::milliseconds{500};

/// How often such a reader looks for others that offer the page before it insists, and the pause
/// before each time: 200 ms in all, while a reader offers what it got within some milliseconds.
inline constexpr auto demand_looks = 40;
inline constexpr auto demand_pause = std::chrono::milliseconds{5};

/// Transfers that one reader keeps in flight to one owner: enough to overlap the owner's copying
/// with the network. An owner closes the connection of a reader that exceeds it.
inline constexpr size_t transfers_in_flight = 4;

/// Ranges in one request for bytes. With pages of 1 KiB and more the bytes are the tighter bound;
/// the request stays small (24 KiB).
inline constexpr size_t transfer_ranges = 1024;

/// How long a new connection to an owner may take to say who it is.
inline constexpr auto greeting_time = std::chrono::seconds{5};

/// Bytes of a connection for pages that the kernel keeps until the peer has room for them: some
/// turns of the sending thread, rather than the megabytes that it would take for a peer that takes
/// nothing.
inline constexpr int page_send_bytes = 256 << 10;

/// How long a connection for pages may be silent, both ways, before it is asked whether the peer is
/// there, and after how many unanswered questions, a second apart, it is not.
inline constexpr auto silent_peer_time = std::chrono::seconds{5};
inline constexpr auto silent_peer_probes = 3;

/// Connections of an owner's server, and of a reader's client. Times transfers_in_flight it bounds
/// the line of requests.
inline constexpr size_t page_connections = 1024;

/// How long start-up tries to reach the index before it gives up with a sentence.
inline constexpr auto index_connect_time = std::chrono::seconds{10};

/// How long a step waits for the slowest rank before it fails with rank_unresponsive.
inline constexpr auto step_timeout = std::chrono::seconds{30};

/// How long a rank waits for the others in one reduction without a pause: some times the
/// microseconds by which ranks that run in step differ, and too short to cost a core.
inline constexpr auto reduction_spin = std::chrono::microseconds{50};

/// Pauses after that: an eighth of the time waited so far, within these bounds. So a rank that
/// waits notices a late one after little more than its lateness, and takes a few percent of a core.
inline constexpr auto reduction_pause_min = std::chrono::microseconds{50};
inline constexpr auto reduction_pause_max = std::chrono::milliseconds{8};

/// Pause while nothing but a change of the storage backend is waited for. It may be waited for as
/// long as the instance lives, so it must cost nothing, and a person asks for it.
inline constexpr auto admin_pause = std::chrono::milliseconds{20};

/// Deadline of one storage batch, unless --hicache-storage-timeout says another one.
inline constexpr auto storage_timeout = std::chrono::seconds{10};

/// Calls of one store that may have passed their deadline without returning. Each keeps a thread
/// and the pages of a batch; with so many, nothing more goes to the store until one returns.
inline constexpr size_t stuck_calls = 8;

/// Failures in a row after which a store is left alone, and the calls of which half have to fail: a
/// store that is merely unlucky (one batch in fifty) does not reach either in years.
inline constexpr uint32_t breaker_failures = 3;
inline constexpr uint32_t breaker_window = 32;

/// How long a store is left alone before it is tried again, at first and at most: long enough that
/// the deadline of a call that is tried in vain is a small share of the time, short enough that a
/// store that was restarted is used again within a minute.
inline constexpr auto breaker_pause_min = std::chrono::seconds{5};
inline constexpr auto breaker_pause_max = std::chrono::seconds{60};

/// Pages of a batch by which a store is tried again.
inline constexpr size_t probe_pages = 1;

/// While nothing but pages in quarantine is outstanding, one step in so many agrees on whether they
/// are free: some seconds late, and next to no reductions.
inline constexpr uint64_t quarantine_steps = 16;

/// How long a rank that ends waits for calls of its store that have not returned, unless
/// --shutdown-grace says another time; and how much longer before the process is ended without
/// further ado.
inline constexpr auto shutdown_grace = std::chrono::seconds{3};
inline constexpr auto shutdown_slack = std::chrono::seconds{5};

/// Events that the backend `file` takes from the logs of others at a time, without letting go of
/// its table: some ten milliseconds.
inline constexpr size_t folder_log_events = 100'000;

/// How long nobody has written to a log when it is taken for that of a process that is gone (a
/// process that lives notices and begins another one), and how many such logs there may be before
/// one process writes them together.
inline constexpr auto folder_log_age = std::chrono::seconds{600};
inline constexpr size_t folder_logs = 64;

/// How long a use of a page is not told to others again: they evict by it, minutes or days later.
inline constexpr auto folder_use_pause = std::chrono::minutes{1};

/// How long opening a folder waits until all of its pages are known. It goes on in the background.
inline constexpr auto folder_load_wait = std::chrono::milliseconds{500};

/// A file that has been written for so long belongs to a process that is gone.
inline constexpr auto folder_write_time = std::chrono::hours{1};

/// How often a write to a full disk is tried, each time after pages of some times its size were
/// evicted: others may take the room as well.
inline constexpr int full_disk_attempts = 4;

/// Body of a request to the admin server. Settings of L3 take a few hundred bytes.
inline constexpr size_t admin_body_bytes = size_t{64} << 10;

/// A whole request to the admin server: the body, and as much again for headers.
inline constexpr size_t admin_request_bytes = 2 * admin_body_bytes;

/// Levels of JSON that the admin server reads. Settings have two; what writes JSON is recursive.
inline constexpr int admin_json_levels = 16;

/// How long a request to the admin server may take to arrive; people's clients send it at once.
inline constexpr auto admin_request_time = std::chrono::seconds{5};

/// Longest deadline that a change of L3 may ask for. Draining takes seconds; a day is a mistake.
inline constexpr auto admin_change_time = std::chrono::hours{1};

/// Threads that answer admin requests. A change occupies one until it is over; the others refuse
/// further changes and show what is.
inline constexpr size_t admin_threads = 4;

/// Connections that may wait for these threads; more stay in the system's queue.
inline constexpr size_t admin_connections = 64;

/// How long a scrape of the metrics waits for actors, and as long for a change of L3, before it
/// leaves out what is missing. Prometheus gives a scrape ten seconds.
inline constexpr auto scrape_time = std::chrono::seconds{1};

/// A text that is part of the names of pages, such as --model-id: revisions and digests take some
/// hundred bytes, RoPE settings with a factor for each dimension some thousand.
inline constexpr size_t identity_text_bytes = 4096;

/// Header of a safetensors file: the format's own bound. Models of 2026 have some MiB.
inline constexpr size_t safetensors_header_bytes = 100'000'000;

/// Levels of JSON in it: tensors, what each is, its shape.
inline constexpr int safetensors_levels = 3;

/// A model's config.json and its like: some KiB each; a larger one is something else.
inline constexpr size_t model_config_bytes = size_t{16} << 20;

/// Levels of JSON in them; what writes JSON is recursive.
inline constexpr int model_config_levels = 64;

} // namespace hicache::limits
