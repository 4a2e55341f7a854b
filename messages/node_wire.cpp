#include "base/limits.hpp"
#include "messages/wire_parts.hpp"

namespace hicache::wire {

namespace {

// -- elements of lists --------------------------------------------------------

void write_key(const page_key& x, schema::Key::Builder to) {
  write(x, to);
}

void read_key(schema::Key::Reader from, page_key& x) {
  read(from, x);
}

void write_wanted(const wanted_page& x, schema::WantedPage::Builder to) {
  write(x.key, to.initKey());
  write(x.parent, to.initParent());
  to.setLength(x.length);
}

void read_wanted(schema::WantedPage::Reader from, wanted_page& x) {
  read(from.getKey(), x.key);
  read(from.getParent(), x.parent);
  x.length = from.getLength();
}

void write_place(const page_place& x, schema::PagePlace::Builder to) {
  to.setStatus(static_cast<uint8_t>(x.status));
  to.setOffset(x.offset);
  to.setGeneration(x.generation);
  to.setLength(x.length);
}

void read_place(schema::PagePlace::Reader from, page_place& x) {
  KJ_REQUIRE(from.getStatus() <= static_cast<uint8_t>(place_status::present), "no such status");
  x.status = static_cast<place_status>(from.getStatus());
  x.offset = from.getOffset();
  x.generation = from.getGeneration();
  x.length = from.getLength();
  KJ_REQUIRE(x.length <= limits::page_bytes, "page too long");
}

void write_complete(const complete_page& x, schema::CompletePage::Builder to) {
  write(x.key, to.initKey());
  to.setChecksum(x.checksum);
}

void read_complete(schema::CompletePage::Reader from, complete_page& x) {
  read(from.getKey(), x.key);
  x.checksum = from.getChecksum();
}

void write_traffic(const client_traffic& x, schema::ClientTraffic::Builder to) {
  to.setPagesWritten(x.pages_written);
  to.setBytesWritten(x.bytes_written);
  to.setPagesWanted(x.pages_wanted);
  to.setPagesFound(x.pages_found);
  to.setBytesFound(x.bytes_found);
}

void read_traffic(schema::ClientTraffic::Reader from, client_traffic& x) {
  x.pages_written = from.getPagesWritten();
  x.bytes_written = from.getBytesWritten();
  x.pages_wanted = from.getPagesWanted();
  x.pages_found = from.getPagesFound();
  x.bytes_found = from.getBytesFound();
}

void write_client(const node_client_state& x, schema::NodeClient::Builder to) {
  to.setClient(x.client);
  write(x.info, to.initInfo());
  to.setReservedBytes(x.reserved_bytes);
  to.setLeasedBytes(x.leased_bytes);
  to.setPages(x.pages);
  to.setRequests(x.requests);
  write_traffic(x.traffic, to.initTraffic());
}

void read_client(schema::NodeClient::Reader from, node_client_state& x) {
  x.client = from.getClient();
  read(from.getInfo(), x.info);
  x.reserved_bytes = from.getReservedBytes();
  x.leased_bytes = from.getLeasedBytes();
  x.pages = from.getPages();
  x.requests = from.getRequests();
  read_traffic(from.getTraffic(), x.traffic);
}

} // namespace

// -- values of messages ---------------------------------------------------------

void write(const client_info& x, schema::ClientInfo::Builder to) {
  to.setTenant(x.tenant);
  to.setFingerprint(x.fingerprint);
}

void read(schema::ClientInfo::Reader from, client_info& x) {
  x.tenant = from.getTenant();
  x.fingerprint = from.getFingerprint();
}

void write(const node_info& x, schema::NodeInfo::Builder to) {
  to.setMemoryName(x.memory_name);
  to.setMemoryBytes(x.memory_bytes);
  to.setLeaseMs(x.lease_ms);
}

void read(schema::NodeInfo::Reader from, node_info& x) {
  x.memory_name = text(from.getMemoryName());
  x.memory_bytes = from.getMemoryBytes();
  x.lease_ms = from.getLeaseMs();
}

void write(const wanted_pages& x, schema::WantedPages::Builder to) {
  write_each(x.pages, to.initPages(size_of(x.pages)), write_wanted);
}

void read(schema::WantedPages::Reader from, wanted_pages& x) {
  read_each(from.getPages(), limits::node_batch_pages, x.pages, read_wanted);
}

void write(const reserved_pages& x, schema::ReservedPages::Builder to) {
  to.setReservation(x.reservation);
  write_each(x.places, to.initPlaces(size_of(x.places)), write_place);
}

void read(schema::ReservedPages::Reader from, reserved_pages& x) {
  x.reservation = from.getReservation();
  read_each(from.getPlaces(), limits::node_batch_pages, x.places, read_place);
}

void write(const complete_pages& x, schema::CompletePages::Builder to) {
  to.setReservation(x.reservation);
  write_each(x.pages, to.initPages(size_of(x.pages)), write_complete);
}

void read(schema::CompletePages::Reader from, complete_pages& x) {
  x.reservation = from.getReservation();
  read_each(from.getPages(), limits::node_batch_pages, x.pages, read_complete);
}

void write(const client_ticket& x, schema::ClientTicket::Builder to) {
  to.setNumber(x.number);
}

void read(schema::ClientTicket::Reader from, client_ticket& x) {
  x.number = from.getNumber();
}

void write(const page_lookup& x, schema::PageLookup::Builder to) {
  write_each(x.keys, to.initKeys(size_of(x.keys)), write_key);
  to.setIsChain(x.is_chain);
  to.setLeaseMs(x.lease_ms);
  to.setWaitMs(x.wait_ms);
}

void read(schema::PageLookup::Reader from, page_lookup& x) {
  read_each(from.getKeys(), limits::node_batch_pages, x.keys, read_key);
  x.is_chain = from.getIsChain();
  x.lease_ms = from.getLeaseMs();
  x.wait_ms = from.getWaitMs();
}

void write(const leased_pages& x, schema::LeasedPages::Builder to) {
  to.setLease(x.lease);
  to.setLeaseMs(x.lease_ms);
  write_each(x.places, to.initPlaces(size_of(x.places)), write_place);
}

void read(schema::LeasedPages::Reader from, leased_pages& x) {
  x.lease = from.getLease();
  x.lease_ms = from.getLeaseMs();
  read_each(from.getPlaces(), limits::node_batch_pages, x.places, read_place);
}

void write(const page_prefetch& x, schema::PagePrefetch::Builder to) {
  write_each(x.keys, to.initKeys(size_of(x.keys)), write_key);
  to.setIsChain(x.is_chain);
  to.setWaitMs(x.wait_ms);
}

void read(schema::PagePrefetch::Reader from, page_prefetch& x) {
  read_each(from.getKeys(), limits::node_batch_pages, x.keys, read_key);
  x.is_chain = from.getIsChain();
  x.wait_ms = from.getWaitMs();
}

void write(const node_status& x, schema::NodeStatus::Builder to) {
  write_each(x.clients, to.initClients(size_of(x.clients)), write_client);
  to.setHasMore(x.has_more);
  to.setClientCount(x.client_count);
  to.setReservedBytes(x.reserved_bytes);
  to.setLeasedBytes(x.leased_bytes);
  to.setReservations(x.reservations);
  to.setLeases(x.leases);
  to.setExpiredLeases(x.expired_leases);
  to.setRefused(x.refused);
  to.setCapacityBytes(x.capacity_bytes);
  to.setUsedBytes(x.used_bytes);
  to.setPages(x.pages);
  to.setEvicted(x.evicted);
  to.setPagesWanted(x.pages_wanted);
  to.setPagesFound(x.pages_found);
  to.setPagesWritten(x.pages_written);
  to.setPagesKept(x.pages_kept);
  to.setPagesDropped(x.pages_dropped);
  to.setUnscannedBytes(x.unscanned_bytes);
  to.setDiskCapacityBytes(x.disk_capacity_bytes);
  to.setDiskBytes(x.disk_bytes);
  to.setDiskPages(x.disk_pages);
  to.setDiskPagesRead(x.disk_pages_read);
  to.setDiskPagesWritten(x.disk_pages_written);
  to.setDiskPagesSkipped(x.disk_pages_skipped);
  to.setDiskPagesFailed(x.disk_pages_failed);
  to.setDiskStores(x.disk_stores);
}

void read(schema::NodeStatus::Reader from, node_status& x) {
  read_each(from.getClients(), limits::node_clients, x.clients, read_client);
  x.has_more = from.getHasMore();
  x.client_count = from.getClientCount();
  x.reserved_bytes = from.getReservedBytes();
  x.leased_bytes = from.getLeasedBytes();
  x.reservations = from.getReservations();
  x.leases = from.getLeases();
  x.expired_leases = from.getExpiredLeases();
  x.refused = from.getRefused();
  x.capacity_bytes = from.getCapacityBytes();
  x.used_bytes = from.getUsedBytes();
  x.pages = from.getPages();
  x.evicted = from.getEvicted();
  x.pages_wanted = from.getPagesWanted();
  x.pages_found = from.getPagesFound();
  x.pages_written = from.getPagesWritten();
  x.pages_kept = from.getPagesKept();
  x.pages_dropped = from.getPagesDropped();
  x.unscanned_bytes = from.getUnscannedBytes();
  x.disk_capacity_bytes = from.getDiskCapacityBytes();
  x.disk_bytes = from.getDiskBytes();
  x.disk_pages = from.getDiskPages();
  x.disk_pages_read = from.getDiskPagesRead();
  x.disk_pages_written = from.getDiskPagesWritten();
  x.disk_pages_skipped = from.getDiskPagesSkipped();
  x.disk_pages_failed = from.getDiskPagesFailed();
  x.disk_stores = text(from.getDiskStores());
}

HICACHE_DEFINE_CODEC(client_info, ClientInfo)
HICACHE_DEFINE_CODEC(node_info, NodeInfo)
HICACHE_DEFINE_CODEC(wanted_pages, WantedPages)
HICACHE_DEFINE_CODEC(reserved_pages, ReservedPages)
HICACHE_DEFINE_CODEC(complete_pages, CompletePages)
HICACHE_DEFINE_CODEC(client_ticket, ClientTicket)
HICACHE_DEFINE_CODEC(page_lookup, PageLookup)
HICACHE_DEFINE_CODEC(leased_pages, LeasedPages)
HICACHE_DEFINE_CODEC(page_prefetch, PagePrefetch)
HICACHE_DEFINE_CODEC(node_status, NodeStatus)

} // namespace hicache::wire
