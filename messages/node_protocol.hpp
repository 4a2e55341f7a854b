#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <string>
#include <vector>

/// Messages from clients to a node. They cross processes like those of index_protocol.hpp.
namespace hicache {

/// Identity of a client, from its first message to the end of its connection.
struct client_info {
  /// The tenant whose share is charged; 0 for clients without a salt.
  uint64_t tenant = 0;
  /// `fingerprint_of` the namespace of its pages; the client finds no others.
  uint64_t fingerprint = 0;

  friend bool operator==(const client_info&, const client_info&) = default;
};

/// What a client needs to use the node.
struct node_info {
  /// Name under which processes of this host map the node's memory.
  std::string memory_name;
  uint64_t memory_bytes = 0;
  /// Maximum duration of a lease.
  uint64_t lease_ms = 0;

  friend bool operator==(const node_info&, const node_info&) = default;
};

/// A page that a client intends to write.
struct wanted_page {
  page_key key;
  /// The preceding page; all zero for a first page.
  page_key parent;
  /// Bytes of the object.
  uint32_t length = 0;

  friend bool operator==(const wanted_page&, const wanted_page&) = default;
};

struct wanted_pages {
  std::vector<wanted_page> pages;

  friend bool operator==(const wanted_pages&, const wanted_pages&) = default;
};

/// A place's status for the client. The values are part of the protocol.
enum class place_status : uint8_t {
  /// Writer: no room. Reader: not here.
  none = 0,
  /// The client writes the object there, then commits.
  writable = 1,
  /// Writer: the page exists or is being written. Reader: the page is there.
  present = 2,
};

/// Where a page is in the node's memory, or may be written.
struct page_place {
  place_status status = place_status::none;
  /// Bytes from the start of the memory to the page's header; the object follows slot_object_offset
  /// bytes later. For `present` pages it is set for readers only.
  uint64_t offset = 0;
  uint32_t generation = 0;
  /// Bytes of the object.
  uint32_t length = 0;

  friend bool operator==(const page_place&, const page_place&) = default;
};

/// Reply to wanted_pages, page by page.
struct reserved_pages {
  /// 0: nothing to write.
  uint64_t reservation = 0;
  std::vector<page_place> places;

  friend bool operator==(const reserved_pages&, const reserved_pages&) = default;
};

struct complete_page {
  page_key key;
  /// page_checksum of the object.
  uint64_t checksum = 0;

  friend bool operator==(const complete_page&, const complete_page&) = default;
};

/// Ends a reservation: these pages are complete, the others will not be written.
struct complete_pages {
  uint64_t reservation = 0;
  std::vector<complete_page> pages;

  friend bool operator==(const complete_pages&, const complete_pages&) = default;
};

/// A reservation or a lease.
struct client_ticket {
  uint64_t number = 0;

  friend bool operator==(const client_ticket&, const client_ticket&) = default;
};

/// Locates pages to be read in place.
struct page_lookup {
  std::vector<page_key> keys;
  /// Each page follows the one before; pages behind the first missing one are useless.
  bool is_chain = false;
  /// Requested duration of the lease, limited by the node's maximum; 0: the maximum.
  uint64_t lease_ms = 0;
  /// How long to wait for pages from the disk or from other members; 0: do not wait.
  uint64_t wait_ms = 0;

  friend bool operator==(const page_lookup&, const page_lookup&) = default;
};

/// Reply to page_lookup, by key. Present pages stay in place and unmodified until the lease ends.
struct leased_pages {
  /// 0: none is present.
  uint64_t lease = 0;
  /// Duration of the lease from the moment the node replied.
  uint64_t lease_ms = 0;
  std::vector<page_place> places;

  friend bool operator==(const leased_pages&, const leased_pages&) = default;
};

/// Request to bring pages into the node's memory from the disk or from other members.
struct page_prefetch {
  std::vector<page_key> keys;
  /// As in page_lookup.
  bool is_chain = false;
  uint64_t wait_ms = 0;

  friend bool operator==(const page_prefetch&, const page_prefetch&) = default;
};

/// Traffic between a node and its clients since the start. Bytes are those of objects.
struct client_traffic {
  /// Pages that clients wrote and committed.
  uint64_t pages_written = 0;
  uint64_t bytes_written = 0;
  /// Pages that clients looked up, and how many of them were leased.
  uint64_t pages_wanted = 0;
  uint64_t pages_found = 0;
  uint64_t bytes_found = 0;

  friend bool operator==(const client_traffic&, const client_traffic&) = default;
};

struct node_client_state {
  /// Numbered by the node in order of attachment.
  uint64_t client = 0;
  client_info info;
  uint64_t reserved_bytes = 0;
  uint64_t leased_bytes = 0;
  /// Reserved and leased.
  uint64_t pages = 0;
  /// Open requests.
  uint64_t requests = 0;
  client_traffic traffic;

  friend bool operator==(const node_client_state&, const node_client_state&) = default;
};

struct node_status {
  /// Paged like the members in index_status.
  std::vector<node_client_state> clients;
  bool has_more = false;
  uint64_t client_count = 0;
  /// Current totals of all clients.
  uint64_t reserved_bytes = 0;
  uint64_t leased_bytes = 0;
  uint64_t reservations = 0;
  uint64_t leases = 0;
  /// Since the start: leases ended by timeout, and requests refused by a share or a bound.
  uint64_t expired_leases = 0;
  uint64_t refused = 0;
  /// The memory's size and used bytes; pages offered now, and evicted since the start.
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t pages = 0;
  uint64_t evicted = 0;
  /// Since the start: pages looked up, leased, and written by clients.
  uint64_t pages_wanted = 0;
  uint64_t pages_found = 0;
  uint64_t pages_written = 0;
  /// Recovery of memory left by an earlier node: pages found and offered again, pages that failed
  /// verification, and bytes not scanned yet.
  uint64_t pages_kept = 0;
  uint64_t pages_dropped = 0;
  uint64_t unscanned_bytes = 0;
  /// The disk tier, all 0 without one: capacity (0: unbounded), used bytes and pages; and since the
  /// start, pages read into memory, written, skipped because the queue was full or they left memory
  /// first, and failed in verification or I/O.
  uint64_t disk_capacity_bytes = 0;
  uint64_t disk_bytes = 0;
  uint64_t disk_pages = 0;
  uint64_t disk_pages_read = 0;
  uint64_t disk_pages_written = 0;
  uint64_t disk_pages_skipped = 0;
  uint64_t disk_pages_failed = 0;
  /// Names of its stores, the first one first: "disk, redis"; empty without one.
  std::string disk_stores;

  friend bool operator==(const node_status&, const node_status&) = default;
};

} // namespace hicache
