#pragma once

// Every message between the actors of hicache, on one page. What an engine sends and receives is in
// hicache/interfaces.hpp.

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

/// The TREE as the other actors of a rank see it.
using tree_core_actor = tree_actor::extend<
  // Controller, backup: an operation ended on this rank.
  caf::reacts_to<atom::done, operation_done>,
  // Prefetcher: a fetch ended on this rank.
  caf::reacts_to<atom::fetched, fetched_pages>,
  // Attachment: from now on no step begins, until a commit or an abort. Answers how many have
  // begun.
  caf::replies_to<atom::freeze>::with<uint64_t>,
  // Attachment: applies the change of L3 before the step of that number, which has not begun, and
  // answers when it did.
  caf::replies_to<atom::commit, storage_change, uint64_t>::with<atom::ok>,
  // Attachment: the ranks did not agree on a step; steps go on.
  caf::reacts_to<atom::abort>,
  // Itself: a step has waited long enough for news (0) or for the other ranks (1); with the step's
  // number.
  caf::reacts_to<atom::tick, uint8_t, uint64_t>>;

/// The CONTROLLER moves pages between L1 and L2. Reports each command to the tree when it is done,
/// in issue order.
using controller_actor = caf::typed_actor<
  // Tree: copies L1 -> L2, and L2 -> L1 layer by layer; one submission in each direction.
  caf::reacts_to<atom::copy, copy_batch>, caf::replies_to<atom::counters>::with<rank_counters>>;

/// The STORAGE owns one L3 backend. Every request carries the time it may take.
using storage_actor = caf::typed_actor<
  // Answers how many pages follow on from the first one without a gap, and where they are.
  caf::replies_to<atom::exists, storage_batch, caf::timespan>::with<storage_hit>,
  // Reads pages into L2.
  caf::replies_to<atom::get, storage_batch, caf::timespan>::with<storage_outcome>,
  // Writes pages from L2.
  caf::replies_to<atom::set, storage_batch, caf::timespan>::with<storage_outcome>,
  // Removes pages.
  caf::replies_to<atom::remove, storage_batch, caf::timespan>::with<storage_outcome>,
  // Answers when the call of a batch that was answered with this ticket has returned.
  caf::replies_to<atom::drain, uint64_t>::with<atom::ok>,
  // Itself: the store finished a batch.
  caf::reacts_to<atom::done, storage_completion>,
  // Itself: the deadline of a batch has passed.
  caf::reacts_to<atom::tick>,
  // Anyone: which calls go to the store.
  caf::replies_to<atom::status>::with<storage_status>,
  // Anyone: what the store says of itself; without an answer of the store in this time, what it
  // said last.
  caf::replies_to<atom::health, caf::timespan>::with<storage_health_ptr>,
  // Itself: what the store said.
  caf::reacts_to<atom::health, storage_health_ptr>>;

/// The PREFETCHER brings pages from L3 to L2. Owns the reserve of L2 pages and the agreement on hit
/// lengths.
using prefetcher_actor = caf::typed_actor<
  // Looks for pages and reads those that every rank has. Answers the tree with `fetched`, exactly
  // once.
  caf::reacts_to<atom::fetch, fetch_command>,
  // Ends a fetch with what has arrived.
  caf::reacts_to<atom::terminate, terminate_command>,
  // Adds pages to the reserve.
  caf::reacts_to<atom::stage, staging_command>,
  // Empties the reserve. No fetch is open.
  caf::reacts_to<atom::stage, reclaim_command>,
  // Attachment: the store to read from; null is none.
  caf::reacts_to<atom::attach, caf::strong_actor_ptr>,
  // Attachment: answers when nothing is under way any more.
  caf::replies_to<atom::drain>::with<atom::ok>,
  caf::replies_to<atom::counters>::with<rank_counters>>;

/// The BACKUP writes pages from L2 to L3. Reports each command to the tree when it is done.
using backup_actor = caf::typed_actor<
  // Writes what L3 lacks.
  caf::reacts_to<atom::backup, backup_command>,
  // Ends a backup with what is stored.
  caf::reacts_to<atom::drop, drop_command>,
  // Itself: a failed write has waited long enough to be tried again; with the number of the pause.
  caf::reacts_to<atom::tick, uint64_t>,
  // Attachment: the store to write to; null is none.
  caf::reacts_to<atom::attach, caf::strong_actor_ptr>,
  // Attachment: answers when nothing is under way any more.
  caf::replies_to<atom::drain>::with<atom::ok>,
  caf::replies_to<atom::counters>::with<rank_counters>>;

/// The CONSENSUS as the other actors of a rank see it. Owns the communicators of the instance.
using rank_reduction_core_actor = rank_reduction_actor::extend<
  // Itself: looks after reductions in flight; with the number of the timer, or 0 for news of
  // another rank.
  caf::reacts_to<atom::poll, uint64_t>>;

/// A MEMBER of the cluster store, as others see it: the actor that owns the memory which it
/// exports.
using member_actor = caf::typed_actor<
  // Reads these pages from another member and keeps them, with their pins. Answers when that is
  // done, with the pages that it has now and those that it has not.
  caf::replies_to<atom::copy, page_copies>::with<page_totals>,
  // Pins pages. Answers what was pinned, and what was not.
  caf::replies_to<atom::pin, page_pins>::with<page_totals>,
  // Withdraws the pages of a namespace and frees them.
  caf::replies_to<atom::clear, namespace_pages>::with<page_totals>,
  // Copies pinned and hot pages to other members, withdraws all, and takes none any more. Answers
  // when nothing is left. Fails, and withdraws nothing, if nobody takes a pinned page, unless it is
  // forced.
  caf::replies_to<atom::drain, drain_request>::with<drain_report>,
  // How draining gets on.
  caf::replies_to<atom::status, status_query>::with<drain_progress>,
  // Ends draining, and takes pages again. Answers how far it was.
  caf::replies_to<atom::resume, drain_request>::with<drain_progress>,
  // These pages were read from here.
  caf::reacts_to<atom::touch, key_batch>,
  // A reader found these pages damaged.
  caf::reacts_to<atom::corrupt, key_batch>>;

/// The SEGMENT owns the memory that this rank exports to L3: which page is where. Mounts it at the
/// index and announces pages.
using segment_actor = member_actor::extend<
  // Its process, at the start. Answers when every shard that can be reached has heard of all pages.
  caf::replies_to<atom::mount>::with<atom::ok>,
  // Finds room for pages, evicting if needed.
  caf::replies_to<atom::reserve, segment_pages>::with<segment_slots>,
  // The pages in these slots are complete: from now on they are offered to everyone. Answers when
  // the index knows, with those that are not offered all the same: the index has enough copies of
  // them, or the segment takes none any more.
  caf::replies_to<atom::publish, segment_slots>::with<key_batch>,
  // Gives slots back that will not be written.
  caf::reacts_to<atom::abort, segment_slots>,
  // These pages are not exported any more: what L2 holds in their place is, or will be, another
  // page.
  caf::reacts_to<atom::withdraw, segment_slots>,
  // Node: keeps these pages where they are, and as they are, until it releases them. Answers in the
  // same order: `present` with the place, or `full` if the page is not here.
  caf::replies_to<atom::hold, segment_holds>::with<segment_slots>,
  // Node: these pages may go, each held once less.
  caf::reacts_to<atom::release, segment_slots>,
  // Withdraws pages and frees their slots.
  caf::replies_to<atom::remove, key_list>::with<atom::ok>,
  // Page scanner: pages of an earlier process that are offered again, part by part. Answers when
  // they are.
  caf::replies_to<atom::adopt, found_pages>::with<atom::ok>,
  // Node: these pages, if they are found later, are not offered again.
  caf::reacts_to<atom::drop, segment_holds>,
  // Its process: the disk tier below. What is cleared here is cleared there, first.
  caf::reacts_to<atom::attach, caf::strong_actor_ptr>,
  // Its process, at the end: leaves the index, and ends. Answers when every shard that can be
  // reached knows.
  caf::replies_to<atom::terminate>::with<atom::ok>,
  // Itself: heartbeat, mounting again after the index was lost, and copies to be repaired.
  caf::reacts_to<atom::tick>>;

/// The COPIER reads pages of other members into this rank's segment. Detached, because reading
/// blocks.
using replicator_actor = caf::typed_actor<
  // Segment: as the member's; with the segment itself.
  caf::replies_to<atom::copy, page_copies, caf::strong_actor_ptr>::with<page_totals>>;

/// The PAGE SCANNER looks for pages in memory that outlived the process which wrote them. Detached,
/// because verifying takes time.
using page_scanner_actor = caf::typed_actor<
  // Itself: the next part.
  caf::reacts_to<atom::tick>>;

/// The FETCHER finds pages of other members and has them copied into this process's segment.
/// Detached, because asking the index blocks.
using fetcher_actor = caf::typed_actor<
  // Node: answers when all that could be copied has been.
  caf::replies_to<atom::fetch, page_fetch>::with<atom::ok>>;

/// The DISK TIER keeps the pages of a segment's memory on disk, too, and brings them back.
/// Detached, because files block.
using disk_tier_actor = fetcher_actor::extend<
  // Node: these pages are offered from now on; they are written once there is time.
  caf::reacts_to<atom::backup, segment_pages>,
  // Node: removes pages of a namespace. Answers when none of them is on the disk, or about to be
  // brought back.
  caf::replies_to<atom::remove, segment_holds>::with<atom::ok>,
  // Segment: removes the pages of a namespace. Answers when none is brought back any more; the
  // files go in the background.
  caf::replies_to<atom::clear, namespace_pages>::with<atom::ok>,
  // Its process: answers when nothing waits to be written.
  caf::replies_to<atom::drain>::with<atom::ok>,
  // Itself: the next thing.
  caf::reacts_to<atom::tick>>;

/// The NODE exports this host's memory to processes that are no members themselves, such as
/// engines. Whoever sends it `attach` is its client, until its connection ends; then its
/// reservations and leases end, too.
using node_actor = caf::typed_actor<
  // Once, first of all: who the client is. The sender is watched from now on.
  caf::replies_to<atom::attach, client_info>::with<node_info>,
  // Finds room for pages that the client will write.
  caf::replies_to<atom::reserve, wanted_pages>::with<reserved_pages>,
  // Ends a reservation. Answers when the pages that are complete are offered, with those that are
  // not offered all the same.
  caf::replies_to<atom::commit, complete_pages>::with<page_totals>,
  // Ends a reservation of which nothing was written. Answers what was given back.
  caf::replies_to<atom::abort, client_ticket>::with<page_totals>,
  // Where pages are, which stay there until the client releases them.
  caf::replies_to<atom::locate, page_lookup>::with<leased_pages>,
  // Ends a lease. Answers what was leased.
  caf::replies_to<atom::release, client_ticket>::with<page_totals>,
  // Brings pages here. Answers at the latest when the time is over, with those that are not here.
  caf::replies_to<atom::fetch, page_prefetch>::with<page_totals>,
  // The client found these pages damaged: the node looks, and withdraws those that are.
  caf::replies_to<atom::corrupt, key_batch>::with<page_totals>,
  // Withdraws pages of the client's namespace and frees them, once nobody reads them. Answers what
  // was there.
  caf::replies_to<atom::remove, key_batch>::with<page_totals>,
  // Anyone: state of the node, for people.
  caf::replies_to<atom::status, status_query>::with<node_status>,
  // Itself: ends leases whose time is over.
  caf::reacts_to<atom::tick>>;

/// The SPREADER has other members copy pages of its own one.
using spreader_actor = caf::typed_actor<
  // Segment: once. Answers when all has been tried, with the pages that others have now, and those
  // that nobody took.
  caf::replies_to<atom::copy>::with<page_totals>,
  // Itself: the next batch may go.
  caf::reacts_to<atom::tick>>;

/// The INDEX knows, for its share of the cluster's keys, which segments hold which page. One of
/// some shards, in a process of its own.
using index_actor = caf::typed_actor<
  // Admits a member; an older epoch of it is forgotten. The sender is watched from now on.
  caf::replies_to<atom::mount, member_info>::with<membership>,
  // Keeps a member alive.
  caf::replies_to<atom::tick, heartbeat>::with<membership>,
  // Pages that a member offers.
  caf::replies_to<atom::publish, published_pages>::with<membership>,
  // Pages that a member no longer offers.
  caf::replies_to<atom::withdraw, withdrawn_pages>::with<membership>,
  // Where pages are.
  caf::replies_to<atom::locate, key_batch>::with<placements>,
  // How to read from members.
  caf::replies_to<atom::members, member_query>::with<member_list>,
  // State of the shard, for people.
  caf::replies_to<atom::status, status_query>::with<index_status>,
  // Directory: the digest of the shards that it knows from now on.
  caf::reacts_to<atom::shards, uint64_t>,
  // Itself: forgets silent members.
  caf::reacts_to<atom::poll>,
  // Itself: goes on removing what members left behind.
  caf::reacts_to<atom::drop>>;

/// The DIRECTORY of an index process knows the shards of the whole index: its own, and those that
/// the directories of other processes tell it of. What clients connect to.
using directory_actor = caf::typed_actor<
  // Another directory or a client tells what it knows. Answers what is known with that.
  caf::replies_to<atom::shards, shard_map>::with<shard_map>,
  // The shard of that number (an index_actor), if it is in this process.
  caf::replies_to<atom::locate, uint32_t>::with<caf::strong_actor_ptr>,
  // Its process: the address (HOST:PORT) under which others reach it, once.
  caf::reacts_to<atom::start, std::string>,
  // Itself: exchanges what is known with the other directories.
  caf::reacts_to<atom::poll>>;

/// The CONNECTOR reaches other processes.
using connector_actor = caf::typed_actor<
  // Connects to the process at this address. Answers what the connector is for: the directory of an
  // index process (a directory_actor), or a node (a node_actor). It ends with the connection.
  caf::replies_to<atom::connect, std::string>::with<caf::strong_actor_ptr>>;

/// The ATTACHMENT attaches and detaches L3 while the instance runs, on all ranks or none. Detached,
/// because opening a store blocks.
using attachment_actor = caf::typed_actor<
  // Anyone: what is attached.
  caf::replies_to<atom::status>::with<storage_attachment>,
  // Rank 0: attaches a backend, or none (detaches), within this time. Answers when all ranks have
  // agreed to; takes effect with the engine's next step.
  caf::replies_to<atom::attach, storage_attachment, caf::timespan>::with<atom::ok>,
  // Rank 0, at the end: the other ranks need not listen any more. Everywhere: answers when nobody
  // does.
  caf::replies_to<atom::abort>::with<atom::ok>>;

/// The OP RECORDER writes an op log to a file. Detached, because files block.
using op_recorder_actor = caf::typed_actor<
  // Appends entries. Answers when the file has them, or why it takes no more.
  caf::replies_to<atom::record, op_log_batch_ptr>::with<atom::ok>,
  // Itself: all that was sent before its end is written.
  caf::reacts_to<atom::done>>;

/// The EVENT PUBLISHER tells routers what the cache can serve. Detached, because making the
/// messages takes time that steps do not have.
using event_publisher_actor = caf::typed_actor<
  // Tree: what became true. Answers when it is on its way.
  caf::replies_to<atom::events, cache_events_ptr>::with<atom::ok>,
  // Itself: all that was sent before its end is on its way.
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
