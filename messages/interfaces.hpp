#pragma once

// All messages between the actors of hicache. Those of the engine are in hicache/interfaces.hpp.

#include "hicache/interfaces.hpp"
#include "messages/type_ids.hpp"
#include "messages/wire.hpp"

#include <caf/actor_control_block.hpp>
#include <caf/replies_to.hpp>
#include <caf/timespan.hpp>
#include <caf/typed_actor.hpp>

#include <cstdint>
#include <string>
#include <type_traits>

namespace hicache {

/// The TREE as seen by the other actors of a rank.
using tree_core_actor = tree_actor::extend<
  // Controller, backup: an operation ended on this rank.
  caf::reacts_to<atom::done, operation_done>,
  // Prefetcher: a fetch ended on this rank.
  caf::reacts_to<atom::fetched, fetched_pages>,
  // Attachment: blocks new steps until a commit or an abort. Replies with the number of steps
  // begun.
  caf::replies_to<atom::freeze>::with<uint64_t>,
  // Attachment: applies the L3 change before the step of that number, which has not begun; replies
  // when done.
  caf::replies_to<atom::commit, storage_change, uint64_t>::with<atom::ok>,
  // Attachment: the ranks did not agree on a step; steps resume.
  caf::reacts_to<atom::abort>,
  // Itself: a step's wait for completions (0) or for the other ranks (1) has expired; with the
  // step's number.
  caf::reacts_to<atom::tick, uint8_t, uint64_t>>;

/// The CONTROLLER moves pages between L1 and L2. Reports each finished command to the tree, in
/// issue order.
using controller_actor = caf::typed_actor<
  // Tree: copies L1 -> L2, and L2 -> L1 layer by layer; one submission in each direction.
  caf::reacts_to<atom::copy, copy_batch>, caf::replies_to<atom::counters>::with<rank_counters>>;

/// The STORAGE owns one L3 backend. Every request carries a timeout.
using storage_actor = caf::typed_actor<
  // Replies with the length of the gapless prefix that exists, and its location.
  caf::replies_to<atom::exists, storage_batch, caf::timespan>::with<storage_hit>,
  // Reads pages into L2.
  caf::replies_to<atom::get, storage_batch, caf::timespan>::with<storage_outcome>,
  // Writes pages from L2.
  caf::replies_to<atom::set, storage_batch, caf::timespan>::with<storage_outcome>,
  // Removes pages.
  caf::replies_to<atom::remove, storage_batch, caf::timespan>::with<storage_outcome>,
  // Replies when the call of the batch answered with this ticket has returned.
  caf::replies_to<atom::drain, uint64_t>::with<atom::ok>,
  // Itself: the store finished a batch.
  caf::reacts_to<atom::done, storage_completion>,
  // Itself: the deadline of a batch has passed.
  caf::reacts_to<atom::tick>,
  // Anyone: state of the breakers.
  caf::replies_to<atom::status>::with<storage_status>,
  // Anyone: the store's health; its previous report if the store does not reply within the timeout.
  caf::replies_to<atom::health, caf::timespan>::with<storage_health_ptr>,
  // Itself: the store's health report.
  caf::reacts_to<atom::health, storage_health_ptr>>;

/// The PREFETCHER brings pages from L3 to L2. Owns the staging pool of L2 pages and the reduction
/// of hit lengths.
using prefetcher_actor = caf::typed_actor<
  // Looks up pages and reads those that every rank has. Sends `fetched` to the tree exactly once.
  caf::reacts_to<atom::fetch, fetch_command>,
  // Ends a fetch with the pages that have arrived.
  caf::reacts_to<atom::terminate, terminate_command>,
  // Adds pages to the staging pool.
  caf::reacts_to<atom::stage, staging_command>,
  // Empties the staging pool. No fetch is open.
  caf::reacts_to<atom::stage, reclaim_command>,
  // Attachment: the store to read from; null: none.
  caf::reacts_to<atom::attach, caf::strong_actor_ptr>,
  // Attachment: replies when nothing is in flight.
  caf::replies_to<atom::drain>::with<atom::ok>,
  caf::replies_to<atom::counters>::with<rank_counters>>;

/// The BACKUP writes pages from L2 to L3. Reports each finished command to the tree.
using backup_actor = caf::typed_actor<
  // Writes the pages that L3 lacks.
  caf::reacts_to<atom::backup, backup_command>,
  // Ends a backup with the pages stored so far.
  caf::reacts_to<atom::drop, drop_command>,
  // Itself: retry a failed write; with the number of the pause.
  caf::reacts_to<atom::tick, uint64_t>,
  // Attachment: the store to write to; null: none.
  caf::reacts_to<atom::attach, caf::strong_actor_ptr>,
  // Attachment: replies when nothing is in flight.
  caf::replies_to<atom::drain>::with<atom::ok>,
  caf::replies_to<atom::counters>::with<rank_counters>>;

/// The RANK REDUCTION as seen by the other actors of a rank. Owns the communicators of the
/// instance.
using rank_reduction_core_actor = rank_reduction_actor::extend<
  // Itself: advance reductions in flight; with the timer's number, or 0 when another rank notifies.
  caf::reacts_to<atom::poll, uint64_t>>;

/// A MEMBER of the cluster store as seen by others: the actor that owns the memory it exports.
using member_actor = caf::typed_actor<
  // Reads these pages from another member and keeps them, with their pins. Replies when done with
  // the pages it has now and those it lacks.
  caf::replies_to<atom::copy, page_copies>::with<page_totals>,
  // Pins pages. Replies with what was pinned and what was not.
  caf::replies_to<atom::pin, page_pins>::with<page_totals>,
  // Withdraws the pages of a namespace and frees them.
  caf::replies_to<atom::clear, namespace_pages>::with<page_totals>,
  // Copies pinned and hot pages to other members, withdraws all pages, and accepts no more. Replies
  // when nothing is left. Unless forced, fails and withdraws nothing if no member takes a pinned
  // page.
  caf::replies_to<atom::drain, drain_request>::with<drain_report>,
  // Progress of the drain.
  caf::replies_to<atom::status, status_query>::with<drain_progress>,
  // Ends a drain and accepts pages again. Replies with the progress so far.
  caf::replies_to<atom::resume, drain_request>::with<drain_progress>,
  // These pages were read from here.
  caf::reacts_to<atom::touch, key_batch>,
  // A reader found these pages damaged.
  caf::reacts_to<atom::corrupt, key_batch>,
  // Brings pages of a namespace from disk into memory. Replies with their places there.
  caf::replies_to<atom::recall, page_recall>::with<placements>>;

/// The SEGMENT owns the memory that this process exports to L3 and the placement of pages in it.
/// Mounts at the index and announces pages.
using segment_actor = member_actor::extend<
  // Its process, at start. Replies when every reachable shard has received a report of all pages.
  caf::replies_to<atom::mount>::with<atom::ok>,
  // Allocates slots for pages, evicting if needed.
  caf::replies_to<atom::reserve, segment_pages>::with<segment_slots>,
  // The pages in these slots are complete; offers them from now on. Replies when the index knows,
  // with the pages that are not offered because the index has enough copies, or any if only new
  // pages are published, or because the segment accepts no more.
  caf::replies_to<atom::publish, segment_slots>::with<key_batch>,
  // Frees slots that are not wanted any more, and withdraws those published meanwhile.
  caf::reacts_to<atom::abort, segment_slots>,
  // These pages are no longer exported: L2 reuses their memory.
  caf::reacts_to<atom::withdraw, segment_slots>,
  // Node: keeps these pages in place and unmodified until released. Replies in the same order:
  // `present` with the place, or `full` if the page is not here.
  caf::replies_to<atom::hold, segment_holds>::with<segment_slots>,
  // Node: releases one hold on each of these pages.
  caf::reacts_to<atom::release, segment_slots>,
  // Withdraws pages and frees their slots.
  caf::replies_to<atom::remove, key_list>::with<atom::ok>,
  // Page scanner: offers pages of an earlier process again, part by part. Replies when done.
  caf::replies_to<atom::adopt, found_pages>::with<atom::ok>,
  // Node: do not offer these pages if the scanner finds them later.
  caf::reacts_to<atom::drop, segment_holds>,
  // Its process: sets the disk tier below. Clearing pages here clears them there first.
  caf::reacts_to<atom::attach, caf::strong_actor_ptr>,
  // Disk tier: the disk has gained or lost these pages.
  caf::reacts_to<atom::backup, key_batch>,
  // Disk tier: all pages that the disk has had since before are known. Announces them.
  caf::reacts_to<atom::adopt>,
  // Its process, at the end: leaves the index and quits. Replies when every reachable shard knows.
  caf::replies_to<atom::terminate>::with<atom::ok>,
  // Itself: heartbeat, remount after an index loss, repair of lost copies.
  caf::reacts_to<atom::tick>>;

/// The REPLICATOR copies pages of other members into this process's segment. Detached, because
/// reading blocks.
using replicator_actor = caf::typed_actor<
  // Segment: like the member's message, with the target segment.
  caf::replies_to<atom::copy, page_copies, caf::strong_actor_ptr>::with<page_totals>>;

/// The PAGE SCANNER finds pages in memory that outlived its writer. Detached, because verification
/// takes long.
using page_scanner_actor = caf::typed_actor<
  // Itself: the next part.
  caf::reacts_to<atom::tick>>;

/// The FETCHER locates pages on other members and has them copied into this process's segment.
/// Detached, because index lookups block.
using fetcher_actor = caf::typed_actor<
  // Node: replies when everything available has been copied.
  caf::replies_to<atom::fetch, page_fetch>::with<atom::ok>>;

/// The DISK TIER keeps pages of a segment's memory in a store on disk, too, and reads them back.
using disk_tier_actor = fetcher_actor::extend<
  // Node: these pages were published; writes them when idle.
  caf::reacts_to<atom::backup, segment_pages>,
  // Node: removes pages of a namespace. Replies when none is on disk or about to be read back.
  caf::replies_to<atom::remove, segment_holds>::with<atom::ok>,
  // Segment: removes all pages of a namespace. Replies when none will be read back any more; they
  // are removed from the store in the background.
  caf::replies_to<atom::clear, namespace_pages>::with<atom::ok>,
  // Its process: replies when no writes are queued.
  caf::replies_to<atom::drain>::with<atom::ok>,
  // Itself: a part of what the store has had since before.
  caf::reacts_to<atom::adopt, disk_listing>,
  // Itself: the store finished a batch.
  caf::reacts_to<atom::done, disk_completion>,
  // Itself: the store evicted these pages.
  caf::reacts_to<atom::withdraw, key_batch>,
  // Itself: begin what can begin; the deadline of a batch has passed.
  caf::reacts_to<atom::tick>>;

/// The NODE shares this host's memory with processes that are no members themselves, such as
/// engines. A sender of `attach` is a client until its connection ends, and with it its
/// reservations and leases.
using node_actor = caf::typed_actor<
  // The first message, once: the client's identity. Monitors the sender.
  caf::replies_to<atom::attach, client_info>::with<node_info>,
  // Allocates places for pages that the client will write.
  caf::replies_to<atom::reserve, wanted_pages>::with<reserved_pages>,
  // Ends a reservation. Replies when its complete pages are offered, with those that are not.
  caf::replies_to<atom::commit, complete_pages>::with<page_totals>,
  // Ends a reservation without writes. Replies with what was freed.
  caf::replies_to<atom::abort, client_ticket>::with<page_totals>,
  // Leases pages: replies with their places, which stay valid until released.
  caf::replies_to<atom::locate, page_lookup>::with<leased_pages>,
  // Ends a lease. Replies with what was leased.
  caf::replies_to<atom::release, client_ticket>::with<page_totals>,
  // Brings pages into memory. Replies within the timeout, with those that are missing.
  caf::replies_to<atom::fetch, page_prefetch>::with<page_totals>,
  // The client found these pages damaged: verifies them and withdraws damaged ones.
  caf::replies_to<atom::corrupt, key_batch>::with<page_totals>,
  // Withdraws pages of the client's namespace and frees them once they are no longer read. Replies
  // with what was there.
  caf::replies_to<atom::remove, key_batch>::with<page_totals>,
  // Withdraws all pages of the client's namespace, or has them leave first. Replies with what was
  // there in memory.
  caf::replies_to<atom::clear, namespace_pages>::with<page_totals>,
  // Anyone: state of the node, for monitoring.
  caf::replies_to<atom::status, status_query>::with<node_status>,
  // Itself: expires leases.
  caf::reacts_to<atom::tick>>;

/// The SPREADER has other members copy pages of this member.
using spreader_actor = caf::typed_actor<
  // Segment: once. Replies when all pages have been tried, with those that others have now and
  // those that none took.
  caf::replies_to<atom::copy>::with<page_totals>,
  // Itself: start the next batch.
  caf::reacts_to<atom::tick>>;

/// The INDEX maps its share of the cluster's keys to the segments that hold the pages. One of
/// several shards, in a process of its own.
using index_actor = caf::typed_actor<
  // Admits a member and drops its older epoch. Monitors the sender.
  caf::replies_to<atom::mount, member_info>::with<membership>,
  // Keeps a member alive.
  caf::replies_to<atom::tick, heartbeat>::with<membership>,
  // Pages that a member offers.
  caf::replies_to<atom::publish, published_pages>::with<membership>,
  // Pages that a member no longer offers.
  caf::replies_to<atom::withdraw, withdrawn_pages>::with<membership>,
  // Where pages are.
  caf::replies_to<atom::locate, key_batch>::with<placements>,
  // Replies once one of these pages has more replicas than the reader knows; fails with
  // deadline_exceeded if none has in time, and with limit_reached if too many wait.
  caf::replies_to<atom::await, awaited_pages>::with<atom::ok>,
  // How to reach members.
  caf::replies_to<atom::members, member_query>::with<member_list>,
  // State of the shard, for monitoring.
  caf::replies_to<atom::status, status_query>::with<index_status>,
  // Directory: the digest of its current shard map.
  caf::reacts_to<atom::shards, uint64_t>,
  // Itself: drop silent members.
  caf::reacts_to<atom::poll>,
  // Itself: continue removing replicas of dropped members.
  caf::reacts_to<atom::drop>,
  // Itself: the time of a reader that waits for replicas is over; with its number.
  caf::reacts_to<atom::await, uint64_t>>;

/// The DIRECTORY of an index process knows the shards of the whole index: its own, and those
/// learned from other directories. Clients connect to it.
using directory_actor = caf::typed_actor<
  // Merges the map of another directory or a client. Replies with the result.
  caf::replies_to<atom::shards, shard_map>::with<shard_map>,
  // The shard of that number (an index_actor), if it is in this process.
  caf::replies_to<atom::locate, uint32_t>::with<caf::strong_actor_ptr>,
  // Its process, once: the address (HOST:PORT) at which others reach it.
  caf::reacts_to<atom::start, std::string>,
  // Itself: exchange maps with the other directories.
  caf::reacts_to<atom::poll>>;

/// The CONNECTOR connects to other processes.
using connector_actor = caf::typed_actor<
  // Connects to the process at this address. Replies with the directory of an index process (a
  // directory_actor) or a node (a node_actor), depending on the connector. That actor ends with the
  // connection.
  caf::replies_to<atom::connect, std::string>::with<caf::strong_actor_ptr>>;

/// The ATTACHMENT attaches and detaches L3 while the instance runs, on all ranks or none. Detached,
/// because opening a store blocks.
using attachment_actor = caf::typed_actor<
  // Anyone: the current attachment.
  caf::replies_to<atom::status>::with<storage_attachment>,
  // Rank 0: attaches a backend, or detaches if it is empty, within this time. Replies when all
  // ranks have agreed; takes effect with the engine's next step.
  caf::replies_to<atom::attach, storage_attachment, caf::timespan>::with<atom::ok>,
  // Rank 0, at the end: stops the other ranks' listening. On all ranks: replies when none listens
  // any more.
  caf::replies_to<atom::abort>::with<atom::ok>>;

/// The OP RECORDER writes an op log to a file. Detached, because file I/O blocks.
using op_recorder_actor = caf::typed_actor<
  // Appends entries. Replies when they are in the file, or with the reason why it accepts no more.
  caf::replies_to<atom::record, op_log_batch_ptr>::with<atom::ok>,
  // Itself: everything received before the exit is written.
  caf::reacts_to<atom::done>>;

/// The EVENT PUBLISHER publishes cache events to routers. Detached, because encoding takes time
/// that steps do not have.
using event_publisher_actor = caf::typed_actor<
  // Tree: new events. Replies when they are sent.
  caf::replies_to<atom::events, cache_events_ptr>::with<atom::ok>,
  // Itself: everything received before the exit is sent.
  caf::reacts_to<atom::done>>;

// -- proof that remote interfaces carry only values with a wire format --------

namespace detail {

template <class T>
inline constexpr bool may_leave_process
  = wire::wire_type<T> || caf::is_atom_constant<T>::value
    || std::is_void_v<
      T> || std::is_arithmetic_v<T> || std::is_same_v<T, std::string> || std::is_same_v<T, caf::strong_actor_ptr>;

template <class>
inline constexpr bool is_remote_signature = false;

template <class... In, class... Out>
inline constexpr bool is_remote_signature<caf::typed_mpi<
  caf::detail::type_list<In...>, caf::output_tuple<Out...>>> = (may_leave_process<In> && ...)
                                                               && (may_leave_process<Out> && ...);

} // namespace detail

/// True if every message of a handle may cross processes.
template <class>
inline constexpr bool is_remote_interface = false;

template <class... Signatures>
inline constexpr bool is_remote_interface<
  caf::typed_actor<Signatures...>> = (detail::is_remote_signature<Signatures> && ...);

static_assert(is_remote_interface<index_actor>);
static_assert(is_remote_interface<directory_actor>);
static_assert(is_remote_interface<member_actor>);
static_assert(is_remote_interface<node_actor>);
static_assert(!is_remote_interface<tree_actor>);
static_assert(!is_remote_interface<tree_core_actor>);
static_assert(!is_remote_interface<storage_actor>);

} // namespace hicache
