#include "base/limits.hpp"
#include "messages/wire_parts.hpp"

namespace hicache::wire {

// -- parts of messages --------------------------------------------------------

void fields(auto side, like<wanted_page> auto& x) {
  HICACHE_FIELD(key, Key);
  HICACHE_FIELD(parent, Parent);
  HICACHE_FIELD(length, Length);
}

void fields(auto side, like<page_place> auto& x) {
  HICACHE_FIELD(status, Status, place_status::present);
  HICACHE_FIELD(offset, Offset);
  HICACHE_FIELD(generation, Generation);
  HICACHE_FIELD(length, Length);
  HICACHE_VALID(x.length <= limits::page_bytes, "page too long");
}

void fields(auto side, like<complete_page> auto& x) {
  HICACHE_FIELD(key, Key);
  HICACHE_FIELD(checksum, Checksum);
}

void fields(auto side, like<client_traffic> auto& x) {
  HICACHE_FIELD(pages_written, PagesWritten);
  HICACHE_FIELD(bytes_written, BytesWritten);
  HICACHE_FIELD(pages_wanted, PagesWanted);
  HICACHE_FIELD(pages_found, PagesFound);
  HICACHE_FIELD(bytes_found, BytesFound);
}

void fields(auto side, like<node_client_state> auto& x) {
  HICACHE_FIELD(client, Client);
  HICACHE_FIELD(info, Info);
  HICACHE_FIELD(reserved_bytes, ReservedBytes);
  HICACHE_FIELD(leased_bytes, LeasedBytes);
  HICACHE_FIELD(pages, Pages);
  HICACHE_FIELD(requests, Requests);
  HICACHE_FIELD(traffic, Traffic);
}

// -- messages -----------------------------------------------------------------

void fields(auto side, like<client_info> auto& x) {
  HICACHE_FIELD(tenant, Tenant);
  HICACHE_FIELD(fingerprint, Fingerprint);
}

void fields(auto side, like<node_info> auto& x) {
  HICACHE_FIELD(memory_name, MemoryName);
  HICACHE_FIELD(memory_bytes, MemoryBytes);
  HICACHE_FIELD(lease_ms, LeaseMs);
}

void fields(auto side, like<wanted_pages> auto& x) {
  HICACHE_FIELD(pages, Pages, limits::node_batch_pages);
}

void fields(auto side, like<reserved_pages> auto& x) {
  HICACHE_FIELD(reservation, Reservation);
  HICACHE_FIELD(places, Places, limits::node_batch_pages);
}

void fields(auto side, like<complete_pages> auto& x) {
  HICACHE_FIELD(reservation, Reservation);
  HICACHE_FIELD(pages, Pages, limits::node_batch_pages);
}

void fields(auto side, like<client_ticket> auto& x) {
  HICACHE_FIELD(number, Number);
}

void fields(auto side, like<page_lookup> auto& x) {
  HICACHE_FIELD(keys, Keys, limits::node_batch_pages);
  HICACHE_FIELD(is_chain, IsChain);
  HICACHE_FIELD(lease_ms, LeaseMs);
  HICACHE_FIELD(wait_ms, WaitMs);
}

void fields(auto side, like<leased_pages> auto& x) {
  HICACHE_FIELD(lease, Lease);
  HICACHE_FIELD(lease_ms, LeaseMs);
  HICACHE_FIELD(places, Places, limits::node_batch_pages);
}

void fields(auto side, like<page_prefetch> auto& x) {
  HICACHE_FIELD(keys, Keys, limits::node_batch_pages);
  HICACHE_FIELD(is_chain, IsChain);
  HICACHE_FIELD(wait_ms, WaitMs);
}

void fields(auto side, like<node_status> auto& x) {
  HICACHE_FIELD(clients, Clients, limits::node_clients);
  HICACHE_FIELD(has_more, HasMore);
  HICACHE_FIELD(client_count, ClientCount);
  HICACHE_FIELD(reserved_bytes, ReservedBytes);
  HICACHE_FIELD(leased_bytes, LeasedBytes);
  HICACHE_FIELD(reservations, Reservations);
  HICACHE_FIELD(leases, Leases);
  HICACHE_FIELD(expired_leases, ExpiredLeases);
  HICACHE_FIELD(refused, Refused);
  HICACHE_FIELD(capacity_bytes, CapacityBytes);
  HICACHE_FIELD(used_bytes, UsedBytes);
  HICACHE_FIELD(pages, Pages);
  HICACHE_FIELD(evicted, Evicted);
  HICACHE_FIELD(pages_wanted, PagesWanted);
  HICACHE_FIELD(pages_found, PagesFound);
  HICACHE_FIELD(pages_written, PagesWritten);
  HICACHE_FIELD(pages_kept, PagesKept);
  HICACHE_FIELD(pages_dropped, PagesDropped);
  HICACHE_FIELD(unscanned_bytes, UnscannedBytes);
  HICACHE_FIELD(disk_capacity_bytes, DiskCapacityBytes);
  HICACHE_FIELD(disk_bytes, DiskBytes);
  HICACHE_FIELD(disk_pages, DiskPages);
  HICACHE_FIELD(disk_pages_read, DiskPagesRead);
  HICACHE_FIELD(disk_pages_written, DiskPagesWritten);
  HICACHE_FIELD(disk_pages_skipped, DiskPagesSkipped);
  HICACHE_FIELD(disk_pages_failed, DiskPagesFailed);
  HICACHE_FIELD(disk_stores, DiskStores);
}

HICACHE_NODE_MESSAGES(HICACHE_DEFINE_MESSAGE)

} // namespace hicache::wire
