#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <string>
#include <vector>

/// What clients say to a node. These values cross processes as those of index_protocol.hpp do.
namespace hicache {

/// On whose behalf a client asks, from its first message to the end of its connection.
struct client_info {
  /// Whose share it counts for; 0 is everybody without a salt.
  uint64_t tenant = 0;
  /// `fingerprint_of` the namespace of its pages; those of others it does not find.
  uint64_t fingerprint = 0;

  friend bool operator==(const client_info&, const client_info&) = default;
};

/// What a client needs to use the node.
struct node_info {
  /// Name under which processes of this host map the node's memory.
  std::string memory_name;
  uint64_t memory_bytes = 0;
  /// How long a lease lasts at most.
  uint64_t lease_ms = 0;

  friend bool operator==(const node_info&, const node_info&) = default;
};

/// A page that a client would like to write.
struct wanted_page {
  page_key key;
  /// The page before; all zero for a first page.
  page_key parent;
  /// Bytes of the object.
  uint32_t length = 0;

  friend bool operator==(const wanted_page&, const wanted_page&) = default;
};

struct wanted_pages {
  std::vector<wanted_page> pages;

  friend bool operator==(const wanted_pages&, const wanted_pages&) = default;
};

/// What a place is to the client. The numbers travel.
enum class place_status : uint8_t {
  /// To a writer: no room. To a reader: not here.
  none = 0,
  /// The client writes the object there, and then commits.
  writable = 1,
  /// To a writer: somebody has written the page, or is about to. To a reader: the page is there.
  present = 2,
};

/// Where in the node's memory a page is, or may be written.
struct page_place {
  place_status status = place_status::none;
  /// Bytes from the start of the memory to the page's header; the object begins slot_object_offset
  /// behind it. Of a page that is `present` a reader alone is told where it is.
  uint64_t offset = 0;
  uint32_t generation = 0;
  /// Bytes of the object.
  uint32_t length = 0;

  friend bool operator==(const page_place&, const page_place&) = default;
};

/// Answer to wanted_pages, page by page.
struct reserved_pages {
  /// 0: there is nothing to write.
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

/// Ends a reservation: these of its pages are complete, the others will not be written.
struct complete_pages {
  uint64_t reservation = 0;
  std::vector<complete_page> pages;

  friend bool operator==(const complete_pages&, const complete_pages&) = default;
};

/// A reservation, or a lease.
struct client_ticket {
  uint64_t number = 0;

  friend bool operator==(const client_ticket&, const client_ticket&) = default;
};

/// Asks where pages are, to read them in place.
struct page_lookup {
  std::vector<page_key> keys;
  /// Each page follows on from the one before: none behind the first that is missing is of use.
  bool is_chain = false;
  /// How long the lease shall last; the node's longest time if this is longer.
  uint64_t lease_ms = 0;
  /// How long the client waits for pages that other members have; 0: not at all.
  uint64_t wait_ms = 0;

  friend bool operator==(const page_lookup&, const page_lookup&) = default;
};

/// Answer to page_lookup, key by key. Pages that are present stay where they are, and as they are,
/// until the lease ends.
struct leased_pages {
  /// 0: none is present.
  uint64_t lease = 0;
  /// How long the lease lasts, from the moment at which the node answered.
  uint64_t lease_ms = 0;
  std::vector<page_place> places;

  friend bool operator==(const leased_pages&, const leased_pages&) = default;
};

/// Asks a node to bring pages of other members into its memory.
struct page_prefetch {
  std::vector<page_key> keys;
  /// As in page_lookup.
  bool is_chain = false;
  uint64_t wait_ms = 0;

  friend bool operator==(const page_prefetch&, const page_prefetch&) = default;
};

/// What went between a node and its clients since the beginning. Bytes are those of objects.
struct client_traffic {
  /// Pages that clients wrote and committed.
  uint64_t pages_written = 0;
  uint64_t bytes_written = 0;
  /// Pages that clients looked up, and those of them that were leased.
  uint64_t pages_wanted = 0;
  uint64_t pages_found = 0;
  uint64_t bytes_found = 0;

  friend bool operator==(const client_traffic&, const client_traffic&) = default;
};

/// A client as people see it.
struct node_client_state {
  /// Numbered by the node in the order in which they came.
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

/// State of a node.
struct node_status {
  /// As the members in index_status.
  std::vector<node_client_state> clients;
  bool has_more = false;
  uint64_t client_count = 0;
  /// Of all clients, now.
  uint64_t reserved_bytes = 0;
  uint64_t leased_bytes = 0;
  uint64_t reservations = 0;
  uint64_t leases = 0;
  /// Since the start: leases that their time ended, and requests refused by a share or a bound.
  uint64_t expired_leases = 0;
  uint64_t refused = 0;
  /// The memory, and what of it holds pages; pages offered now, and evicted since the start.
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t pages = 0;
  uint64_t evicted = 0;
  /// Since the start: pages that were looked up, those of them that were leased, and those that
  /// clients wrote.
  uint64_t pages_wanted = 0;
  uint64_t pages_found = 0;
  uint64_t pages_written = 0;
  /// Of memory that a node left before: pages that were found there and are offered again, pages
  /// that did not verify, and bytes that were not looked at yet.
  uint64_t pages_kept = 0;
  uint64_t pages_dropped = 0;
  uint64_t unscanned_bytes = 0;
  /// The disk tier, all 0 without: bound on its bytes, the bytes and pages that it has, and, since
  /// the start, pages read into memory, written, not written since they left memory before, and
  /// those that did not verify or could not be read or written.
  uint64_t disk_capacity_bytes = 0;
  uint64_t disk_bytes = 0;
  uint64_t disk_pages = 0;
  uint64_t disk_pages_read = 0;
  uint64_t disk_pages_written = 0;
  uint64_t disk_pages_skipped = 0;
  uint64_t disk_pages_failed = 0;

  friend bool operator==(const node_status&, const node_status&) = default;
};

} // namespace hicache
