#pragma once

#include "hicache/ids.hpp"

#include <absl/container/inlined_vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Messages from members and readers to the index. They cross processes: each has a Cap'n Proto
/// schema (index_protocol.capnp) and a codec (wire.hpp).
namespace hicache {

/// Version of the protocol between processes, and the oldest compatible one. Two processes are
/// compatible if each has at least the other's minimum; unknown fields are ignored.
inline constexpr uint32_t index_protocol_version = 6;
inline constexpr uint32_t index_protocol_minimum = 4;
static_assert(index_protocol_minimum <= index_protocol_version);

/// The offset of a page that its member has on disk only. Readers have the member bring it into
/// memory first.
inline constexpr uint64_t disk_offset = uint64_t{1} << 63;

constexpr bool is_on_disk(uint64_t offset) noexcept {
  return (offset & disk_offset) != 0;
}

/// Objects in a member's L2 that are readable in place, outside its segment. Their headers are in a
/// table.
struct exported_objects {
  /// Start of the header table in bytes from the start of the member's memory; slot_object_offset
  /// bytes per object.
  uint64_t headers = 0;
  /// Start of object 0. The others follow without gaps.
  uint64_t objects = 0;
  uint64_t object_bytes = 0;
  /// 0: the member exports only its segment.
  uint64_t count = 0;

  friend bool operator==(const exported_objects&, const exported_objects&) = default;
};

/// A process that exports memory, and how to read it.
struct member_info {
  /// Chosen at random by the process at start and never reused; identifies the member to readers.
  uint64_t member = 0;
  /// Grows with every mount, which invalidates pages announced under older epochs unless it resumes
  /// one.
  uint64_t epoch = 0;
  uint32_t protocol_version = index_protocol_version;
  /// The machine, or another failure domain: replicas of a page go to different ones.
  std::string host;
  /// Name under which peers on the same machine open the memory.
  std::string memory_name;
  /// HOST:PORT of the page server, for peers elsewhere.
  std::string page_address;
  /// HOST:PORT for requests to the member (member_actor); empty if it accepts none.
  std::string address;
  /// Of the segment and of exported objects.
  uint64_t capacity_bytes = 0;
  /// `fingerprint_of` the namespace of the pages that this process itself stores.
  uint64_t fingerprint = 0;
  exported_objects exported;
  /// Only for mount: an earlier epoch for which the member knows what the shard has received. A
  /// shard that still has the member's pages keeps them. 0: none.
  uint64_t resumes = 0;
  /// The member accepts no more pages since it is being or has been drained; as of its last
  /// heartbeat.
  bool is_closed = false;

  friend bool operator==(const member_info&, const member_info&) = default;
};

struct index_shard {
  /// Determines its share of the keys, permanently: see shard_set.
  uint32_t number = 0;
  /// HOST:PORT of the directory of its process; empty if the shard was given up.
  std::string address;
  /// Epoch of the claim: of two processes that claim a number, the larger epoch wins. A claim takes
  /// an epoch above all known ones. Older versions use milliseconds since 1970.
  uint64_t epoch = 0;

  friend bool operator==(const index_shard&, const index_shard&) = default;
};

/// The shards of the index as known to a process.
struct shard_map {
  /// Sorted by number.
  std::vector<index_shard> shards;

  friend bool operator==(const shard_map&, const shard_map&) = default;
};

/// Answer to mount and heartbeat.
struct membership {
  /// False if the index does not know the member under this epoch: remount and report all pages.
  bool known = false;
  /// The index drops a member that sends no heartbeat for longer.
  uint64_t member_ttl_ms = 0;
  /// `digest_of` the shard map of the shard's process; 0 if it has none.
  uint64_t shards_digest = 0;
  /// Pages just announced that already have limits::replicas_per_key other replicas, or any other
  /// one in memory if only new pages were announced; this replica is not listed.
  std::vector<page_key> refused = {};
  /// Pages of this member that lost a replica with another member; each is reported once, to one of
  /// its remaining holders.
  std::vector<page_key> lost = {};
  /// For mount: the pages announced under the resumed epoch are still known.
  bool resumed = false;
  /// The index also takes pages on disk. Versions before 6 do not.
  bool takes_disk = false;

  friend bool operator==(const membership&, const membership&) = default;
};

/// Statistics of a member since its start.
struct member_counters {
  /// Pages that this process read from L3, did not find, and failed to read.
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t errors = 0;
  /// Pages of this member's memory that readers found damaged.
  uint64_t corrupt = 0;
  /// Pages evicted to make room.
  uint64_t evicted = 0;
  /// Bytes of this member's memory currently hard-pinned.
  uint64_t pinned_bytes = 0;

  friend bool operator==(const member_counters&, const member_counters&) = default;
};

/// Keeps a member alive, or announces that it leaves.
struct heartbeat {
  uint64_t member = 0;
  uint64_t epoch = 0;
  member_counters counters;
  /// The member leaves; all of its pages are withdrawn.
  bool leaves = false;
  /// The member accepts no more pages.
  bool is_closed = false;

  friend bool operator==(const heartbeat&, const heartbeat&) = default;
};

/// A page that a member offers.
struct announced_page {
  page_key key;
  /// Bytes from the start of the member's memory to the header; `object_offset` locates the object.
  /// `disk_offset` if the page is on disk.
  uint64_t offset = 0;
  uint32_t generation = 0;
  /// Bytes of the object.
  uint32_t length = 0;

  friend bool operator==(const announced_page&, const announced_page&) = default;
};

/// Pages that a member starts to offer.
struct published_pages {
  uint64_t member = 0;
  uint64_t epoch = 0;
  std::vector<announced_page> pages;
  /// For the last `seconds` of these pages the shard is the second keeper: it answers lookups like
  /// the first, but does not count them.
  uint32_t seconds = 0;
  /// The first keeper refuses pages that another member offers in memory, so that one of two
  /// members that store a page at the same time keeps it. The second keeper follows the first.
  bool only_new = false;

  friend bool operator==(const published_pages&, const published_pages&) = default;
};

/// Pages that a member no longer offers.
struct withdrawn_pages {
  uint64_t member = 0;
  uint64_t epoch = 0;
  std::vector<page_key> keys;

  friend bool operator==(const withdrawn_pages&, const withdrawn_pages&) = default;
};

struct key_batch {
  std::vector<page_key> keys;
  /// For locate: the reader also wants places on disk. Versions before 6 do not.
  bool with_disk = false;

  friend bool operator==(const key_batch&, const key_batch&) = default;
};

/// Asks for a reply once one of these pages has more replicas in memory than the reader knows.
struct awaited_pages {
  std::vector<page_key> keys;
  /// How many replicas in memory the reader knows of each key.
  std::vector<uint8_t> known;
  /// The longest wait for that.
  uint32_t wait_ms = 0;

  friend bool operator==(const awaited_pages&, const awaited_pages&) = default;
};

/// Location of one copy of a page.
struct replica {
  uint64_t member = 0;
  /// As in announced_page.
  uint64_t offset = 0;
  uint32_t generation = 0;
  /// Bytes of the object.
  uint32_t length = 0;

  friend bool operator==(const replica&, const replica&) = default;
};

/// The replicas of a page. Usually one, or two with a copy on another host, which are stored
/// inline.
using replica_list = absl::InlinedVector<replica, 2>;

/// How many of these replicas are in memory.
template <class Replicas>
size_t count_in_memory(const Replicas& replicas) {
  return static_cast<size_t>(
    std::ranges::count_if(replicas, [](const auto& x) { return !is_on_disk(x.offset); }));
}

/// Reply to a lookup: the replicas of each key, in order; empty if the page is unknown.
struct placements {
  std::vector<replica_list> replicas;
  /// As in membership.
  uint64_t shards_digest = 0;
  /// Members may have pages they have not announced yet; the other keeper may know keys that are
  /// unknown here.
  bool is_partial = false;

  friend bool operator==(const placements&, const placements&) = default;
};

/// Members to describe: the ones named, or all if none are named.
struct member_query {
  std::vector<uint64_t> members;
  /// If all: only ids from `from` on, sorted, at most `most`; 0: all at once, which fits one
  /// message up to some thousand members.
  uint64_t from = 0;
  uint32_t most = 0;

  friend bool operator==(const member_query&, const member_query&) = default;
};

/// Reply to a member query. Unknown members are left out.
struct member_list {
  std::vector<member_info> members;
  /// More members with higher ids exist.
  bool has_more = false;

  friend bool operator==(const member_list&, const member_list&) = default;
};

/// Requests the state of a shard; pages through its members like member_query.
struct status_query {
  uint64_t from = 0;
  uint32_t most = 0;

  friend bool operator==(const status_query&, const status_query&) = default;
};

struct member_state {
  member_info info;
  /// In memory.
  uint64_t pages = 0;
  uint64_t bytes = 0;
  /// Since the last heartbeat.
  uint64_t silent_ms = 0;
  member_counters counters;
  /// On disk only.
  uint64_t disk_pages = 0;
  uint64_t disk_bytes = 0;

  friend bool operator==(const member_state&, const member_state&) = default;
};

/// State of one index shard; counters since its start. The shard's and its members' pages are
/// counted only where the shard is the first keeper, so sums over all shards count each page once.
struct index_status {
  std::vector<member_state> members;
  uint64_t keys = 0;
  /// In memory.
  uint64_t replicas = 0;
  uint64_t bytes = 0;
  uint64_t lookups = 0;
  uint64_t keys_asked = 0;
  uint64_t keys_found = 0;
  uint64_t members_lost = 0;
  uint64_t uptime_ms = 0;
  /// As in member_list.
  bool has_more = false;
  /// Keys of which the shard is the second keeper; not included in `keys`.
  uint64_t second_keys = 0;
  /// On disk only.
  uint64_t disk_replicas = 0;
  uint64_t disk_bytes = 0;

  friend bool operator==(const index_status&, const index_status&) = default;
};

/// Result of a command to a member.
struct page_totals {
  uint64_t pages = 0;
  /// Headers included.
  uint64_t bytes = 0;
  /// Requested pages that the command could not handle.
  std::vector<page_key> left_out = {};

  friend bool operator==(const page_totals&, const page_totals&) = default;
};

/// Pins pages of a member, or unpins them.
struct page_pins {
  /// A `pin_kind` of cache/store/segment_table.hpp.
  uint8_t kind = 0;
  /// Duration of a soft pin.
  uint64_t ttl_ms = 0;
  std::vector<page_key> keys;

  friend bool operator==(const page_pins&, const page_pins&) = default;
};

struct namespace_pages {
  uint64_t fingerprint = 0;
  /// The pages stay, but in memory they leave before others until they are used again.
  bool evict_first = false;

  friend bool operator==(const namespace_pages&, const namespace_pages&) = default;
};

/// A page to copy from one member to another.
struct copied_page {
  announced_page page;
  /// The preceding page; all zero for a first page.
  page_key parent;
  uint64_t fingerprint = 0;
  uint64_t tenant = 0;
  /// As in page_pins.
  uint8_t pin = 0;
  uint64_t pin_ttl_ms = 0;
  /// Number of copies wanted, on different hosts; when one is lost, the remaining holders replace
  /// it.
  uint8_t copies = 1;

  friend bool operator==(const copied_page&, const copied_page&) = default;
};

/// Request to read these pages from another member and keep them.
struct page_copies {
  uint64_t source = 0;
  std::vector<copied_page> pages;

  friend bool operator==(const page_copies&, const page_copies&) = default;
};

/// Request to bring pages of the member's disk into its memory. The reply has their places there;
/// none for a page that did not get there in time.
struct page_recall {
  /// `fingerprint_of` the namespace of the pages.
  uint64_t fingerprint = 0;
  std::vector<page_key> keys;
  /// The longest wait for the disk.
  uint32_t wait_ms = 0;

  friend bool operator==(const page_recall&, const page_recall&) = default;
};

/// Request to hand off all pages and accept no more.
struct drain_request {
  /// Proceed even if pinned pages cannot be copied.
  bool force = false;

  friend bool operator==(const drain_request&, const drain_request&) = default;
};

struct drain_report {
  /// Copied to other members.
  uint64_t moved = 0;
  /// No longer offered by this member.
  uint64_t withdrawn = 0;

  friend bool operator==(const drain_report&, const drain_report&) = default;
};

struct drain_progress {
  bool is_draining = false;
  /// The member accepts no pages.
  bool is_closed = false;
  /// Pages to copy to other members, tried so far, and copied.
  uint64_t pages = 0;
  uint64_t tried = 0;
  uint64_t moved = 0;

  friend bool operator==(const drain_progress&, const drain_progress&) = default;
};

} // namespace hicache
