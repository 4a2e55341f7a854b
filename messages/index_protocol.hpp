#pragma once

#include "hicache/ids.hpp"

#include <absl/container/inlined_vector.h>

#include <cstdint>
#include <string>
#include <vector>

/// What members and readers say to the index. These values cross processes: each has a Cap'n Proto
/// schema (index_protocol.capnp) and a codec (wire.hpp).
namespace hicache {

/// Version of the protocol between processes, and the oldest one that this version works with. Two
/// processes work together if each has at least what the other wants; what one of them does not
/// know of, it ignores.
inline constexpr uint32_t index_protocol_version = 5;
inline constexpr uint32_t index_protocol_minimum = 4;
static_assert(index_protocol_minimum <= index_protocol_version);

/// Objects that a member offers where they lie, outside of its segment: those of its L2. Their
/// headers are in a table.
struct exported_objects {
  /// Where the table begins, in bytes from the start of the member's memory: slot_object_offset
  /// bytes for each object.
  uint64_t headers = 0;
  /// Where object 0 begins. The others follow without gaps.
  uint64_t objects = 0;
  uint64_t object_bytes = 0;
  /// 0: the member exports its segment alone.
  uint64_t count = 0;

  friend bool operator==(const exported_objects&, const exported_objects&) = default;
};

/// A rank that exports memory, and how to read it.
struct member_info {
  /// Random, chosen by the process at start, and never used again: readers know it by this alone.
  uint64_t member = 0;
  /// Grows with every mount; nothing that was announced under an older epoch is valid, unless the
  /// mount resumes it.
  uint64_t epoch = 0;
  uint32_t protocol_version = index_protocol_version;
  /// The machine, or whatever else fails as one: replicas of a page go to different ones.
  std::string host;
  /// Name under which peers on the same machine open the memory.
  std::string memory_name;
  /// HOST:PORT of the page server, for peers elsewhere.
  std::string page_address;
  /// HOST:PORT where the member takes requests (member_actor); empty if it takes none.
  std::string address;
  /// Of the segment and of exported objects.
  uint64_t capacity_bytes = 0;
  /// `fingerprint_of` the namespace of the pages that this process stores itself.
  uint64_t fingerprint = 0;
  exported_objects exported;
  /// To mount alone: an epoch before, of which the member knows what the shard has heard. A shard
  /// that has its pages still keeps them. 0: none.
  uint64_t resumes = 0;
  /// It takes no more pages, because it is drained or was. As of its last heartbeat.
  bool is_closed = false;

  friend bool operator==(const member_info&, const member_info&) = default;
};

/// One shard of the index.
struct index_shard {
  /// Which part of the keys it keeps, for good: see shard_set.
  uint32_t number = 0;
  /// HOST:PORT of the directory of its process; empty if the shard was given up.
  std::string address;
  /// Of that claim: of two processes that claim a number the one with the larger epoch has it.
  /// Whoever claims a shard takes one beyond those that it knows. Older processes take milliseconds
  /// since 1970.
  uint64_t epoch = 0;

  friend bool operator==(const index_shard&, const index_shard&) = default;
};

/// The shards of the index, as far as a process knows them.
struct shard_map {
  /// In order of their numbers.
  std::vector<index_shard> shards;

  friend bool operator==(const shard_map&, const shard_map&) = default;
};

/// Answer to mount and heartbeat.
struct membership {
  /// False if the index does not know the member under this epoch: mount again and report all
  /// pages.
  bool known = false;
  /// The index forgets a member that is silent for longer.
  uint64_t member_ttl_ms = 0;
  /// `digest_of` the map that the shard's process knows; 0 if it has none.
  uint64_t shards_digest = 0;
  /// Of the pages just announced: those that have limits::replicas_per_key replicas without this
  /// one. Nobody will find them here.
  std::vector<page_key> refused = {};
  /// Pages of this member whose copy elsewhere went with a member, each told once, to one of those
  /// that still have it.
  std::vector<page_key> lost = {};
  /// To mount: what was announced under the epoch that the member resumes is known.
  bool resumed = false;

  friend bool operator==(const membership&, const membership&) = default;
};

/// What a member counted since its start, for people.
struct member_counters {
  /// Pages that this process read from L3, wanted and did not find, and could not read.
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t errors = 0;
  /// Pages of this member's memory that readers found damaged.
  uint64_t corrupt = 0;
  /// Pages that went to make room.
  uint64_t evicted = 0;
  /// Bytes of this member's memory that hard pins keep now.
  uint64_t pinned_bytes = 0;

  friend bool operator==(const member_counters&, const member_counters&) = default;
};

/// A sign of life, or the last one.
struct heartbeat {
  uint64_t member = 0;
  uint64_t epoch = 0;
  member_counters counters;
  /// The member ends, and all that it offered with it.
  bool leaves = false;
  /// The member takes no more pages.
  bool is_closed = false;

  friend bool operator==(const heartbeat&, const heartbeat&) = default;
};

/// A page that a member offers.
struct announced_page {
  page_key key;
  /// Bytes from the start of the member's memory to the header; `object_offset` says where the
  /// object is.
  uint64_t offset = 0;
  uint32_t generation = 0;
  /// Bytes of the object.
  uint32_t length = 0;

  friend bool operator==(const announced_page&, const announced_page&) = default;
};

/// Pages that an owner offers from now on.
struct published_pages {
  uint64_t member = 0;
  uint64_t epoch = 0;
  std::vector<announced_page> pages;
  /// Of the last so many of these pages the shard is the second keeper: it answers for them like
  /// the first, but does not count them.
  uint32_t seconds = 0;

  friend bool operator==(const published_pages&, const published_pages&) = default;
};

/// Pages that an owner no longer offers.
struct withdrawn_pages {
  uint64_t member = 0;
  uint64_t epoch = 0;
  std::vector<page_key> keys;

  friend bool operator==(const withdrawn_pages&, const withdrawn_pages&) = default;
};

/// Keys to look up.
struct key_batch {
  std::vector<page_key> keys;

  friend bool operator==(const key_batch&, const key_batch&) = default;
};

/// Where one copy of a page is.
struct replica {
  uint64_t member = 0;
  uint64_t offset = 0;
  uint32_t generation = 0;
  /// Bytes of the object.
  uint32_t length = 0;

  friend bool operator==(const replica&, const replica&) = default;
};

/// Who has a page. Mostly one, or two with a copy on another host: those take no memory of their
/// own.
using replica_list = absl::InlinedVector<replica, 2>;

/// Answer to a lookup: for each key, in order, its replicas; none if the page is unknown.
struct placements {
  std::vector<replica_list> replicas;
  /// As in membership.
  uint64_t shards_digest = 0;
  /// Members may have pages that they did not tell yet: what is unknown here, the other keeper may
  /// know.
  bool is_partial = false;

  friend bool operator==(const placements&, const placements&) = default;
};

/// Members to describe: those named here, or all if it names none.
struct member_query {
  std::vector<uint64_t> members;
  /// Of all, in order of their ids: those with this id or a higher one, and at most so many; 0 asks
  /// for all at once, which fits one message up to some thousand members.
  uint64_t from = 0;
  uint32_t most = 0;

  friend bool operator==(const member_query&, const member_query&) = default;
};

/// Answer to a member query. Unknown members are left out.
struct member_list {
  std::vector<member_info> members;
  /// There are members with higher ids.
  bool has_more = false;

  friend bool operator==(const member_list&, const member_list&) = default;
};

/// Asks for the state of a shard; of its members as member_query does.
struct status_query {
  uint64_t from = 0;
  uint32_t most = 0;

  friend bool operator==(const status_query&, const status_query&) = default;
};

/// One member as people see it.
struct member_state {
  member_info info;
  uint64_t pages = 0;
  uint64_t bytes = 0;
  /// Since the last sign of life.
  uint64_t silent_ms = 0;
  member_counters counters;

  friend bool operator==(const member_state&, const member_state&) = default;
};

/// State of one index shard. Counters since its start. Pages of members and the shard's count
/// where the shard is their first keeper, so that sums over all shards have each page once.
struct index_status {
  std::vector<member_state> members;
  uint64_t keys = 0;
  uint64_t replicas = 0;
  uint64_t bytes = 0;
  uint64_t lookups = 0;
  uint64_t keys_asked = 0;
  uint64_t keys_found = 0;
  uint64_t members_lost = 0;
  uint64_t uptime_ms = 0;
  /// As in member_list.
  bool has_more = false;
  /// Keys that the shard keeps as their second keeper; not among `keys`.
  uint64_t second_keys = 0;

  friend bool operator==(const index_status&, const index_status&) = default;
};

/// What a command to a member was about.
struct page_totals {
  uint64_t pages = 0;
  /// Headers included.
  uint64_t bytes = 0;
  /// The pages that were asked for in vain.
  std::vector<page_key> left_out = {};

  friend bool operator==(const page_totals&, const page_totals&) = default;
};

/// Pins pages of a member, or takes their pins away.
struct page_pins {
  /// A `pin_kind` of cache/store/segment_table.hpp.
  uint8_t kind = 0;
  /// How long a soft pin lasts.
  uint64_t ttl_ms = 0;
  std::vector<page_key> keys;

  friend bool operator==(const page_pins&, const page_pins&) = default;
};

/// All pages of a namespace.
struct namespace_pages {
  uint64_t fingerprint = 0;

  friend bool operator==(const namespace_pages&, const namespace_pages&) = default;
};

/// A page to be copied from a member to another one.
struct copied_page {
  announced_page page;
  /// The page before; all zero for a first page.
  page_key parent;
  uint64_t fingerprint = 0;
  uint64_t tenant = 0;
  /// As in page_pins.
  uint8_t pin = 0;
  uint64_t pin_ttl_ms = 0;
  /// Copies that there shall be, on different hosts: when one is lost, those who have others see to
  /// it.
  uint8_t copies = 1;

  friend bool operator==(const copied_page&, const copied_page&) = default;
};

/// Asks a member to read these pages from another one and to keep them.
struct page_copies {
  uint64_t source = 0;
  std::vector<copied_page> pages;

  friend bool operator==(const page_copies&, const page_copies&) = default;
};

/// Asks a member to give its pages away and to take no more.
struct drain_request {
  /// Also if pinned pages cannot be copied to anybody.
  bool force = false;

  friend bool operator==(const drain_request&, const drain_request&) = default;
};

/// What became of a member's pages.
struct drain_report {
  /// Copied to other members.
  uint64_t moved = 0;
  /// Not offered any more by anybody, unless others had them already.
  uint64_t withdrawn = 0;

  friend bool operator==(const drain_report&, const drain_report&) = default;
};

/// How a member gets on with being drained.
struct drain_progress {
  bool is_draining = false;
  /// It takes no pages.
  bool is_closed = false;
  /// To be copied to others, tried so far, and copied.
  uint64_t pages = 0;
  uint64_t tried = 0;
  uint64_t moved = 0;

  friend bool operator==(const drain_progress&, const drain_progress&) = default;
};

} // namespace hicache
