@0xd2f1a6c83b5e7094;

# Messages from clients to a node; rpc/services.capnp has the calls. Versioned with index_protocol.capnp. Append fields with the next free
# number; never reuse a number.

using Cxx = import "/capnp/c++.capnp";
using Protocol = import "/messages/index_protocol.capnp";
$Cxx.namespace("hicache::schema");

struct ClientInfo {
  tenant @0 :UInt64;
  fingerprint @1 :UInt64;
}

struct NodeInfo {
  memoryName @0 :Text;
  memoryBytes @1 :UInt64;
  leaseMs @2 :UInt64;
}

struct WantedPage {
  key @0 :Protocol.Key;
  parent @1 :Protocol.Key;
  length @2 :UInt32;
}

struct WantedPages {
  pages @0 :List(WantedPage);
}

struct PagePlace {
  status @0 :UInt8;
  offset @1 :UInt64;
  generation @2 :UInt32;
  length @3 :UInt32;
}

struct ReservedPages {
  reservation @0 :UInt64;
  places @1 :List(PagePlace);
}

struct CompletePage {
  key @0 :Protocol.Key;
  checksum @1 :UInt64;
}

struct CompletePages {
  reservation @0 :UInt64;
  pages @1 :List(CompletePage);
}

struct ClientTicket {
  number @0 :UInt64;
}

struct PageLookup {
  keys @0 :List(Protocol.Key);
  isChain @1 :Bool;
  leaseMs @2 :UInt64;
  waitMs @3 :UInt64;
}

struct LeasedPages {
  lease @0 :UInt64;
  leaseMs @1 :UInt64;
  places @2 :List(PagePlace);
}

struct PagePrefetch {
  keys @0 :List(Protocol.Key);
  isChain @1 :Bool;
  waitMs @2 :UInt64;
}

struct NodeClient {
  client @0 :UInt64;
  info @1 :ClientInfo;
  reservedBytes @2 :UInt64;
  leasedBytes @3 :UInt64;
  pages @4 :UInt64;
  requests @5 :UInt64;
  traffic @6 :ClientTraffic;
}

struct ClientTraffic {
  pagesWritten @0 :UInt64;
  bytesWritten @1 :UInt64;
  pagesWanted @2 :UInt64;
  pagesFound @3 :UInt64;
  bytesFound @4 :UInt64;
}

struct NodeStatus {
  clients @0 :List(NodeClient);
  hasMore @1 :Bool;
  clientCount @2 :UInt64;
  reservedBytes @3 :UInt64;
  leasedBytes @4 :UInt64;
  reservations @5 :UInt64;
  leases @6 :UInt64;
  expiredLeases @7 :UInt64;
  refused @8 :UInt64;
  capacityBytes @9 :UInt64;
  usedBytes @10 :UInt64;
  pages @11 :UInt64;
  evicted @12 :UInt64;
  pagesWanted @13 :UInt64;
  pagesFound @14 :UInt64;
  pagesWritten @15 :UInt64;
  pagesKept @16 :UInt64;
  pagesDropped @17 :UInt64;
  unscannedBytes @18 :UInt64;
  diskCapacityBytes @19 :UInt64;
  diskBytes @20 :UInt64;
  diskPages @21 :UInt64;
  diskPagesRead @22 :UInt64;
  diskPagesWritten @23 :UInt64;
  diskPagesSkipped @24 :UInt64;
  diskPagesFailed @25 :UInt64;
  diskStores @26 :Text;
}
