@0xc1d7a90b52e8f364;

# Requests between processes. The methods of an interface are the remotely callable messages of the actor of that name in
# messages/interfaces.hpp. Append methods; never reuse a number.

using Cxx = import "/capnp/c++.capnp";
using Protocol = import "/messages/index_protocol.capnp";
using NodeProtocol = import "/messages/node_protocol.capnp";
$Cxx.namespace("hicache::schema");

struct Hello {
  # The sender's version and its minimum for peers: index_protocol_version and index_protocol_minimum.
  version @0 :UInt32;
  minimum @1 :UInt32;
}

struct Welcome {
  hello @0 :Hello;
  # The services of the process; null if not served.
  directory @1 :Directory;
  member @2 :Member;
  node @3 :Node;
}

interface Process {
  # First call on every connection.
  hello @0 Hello -> Welcome;
}

struct ShardQuery {
  number @0 :UInt32;
}

struct ShardAnswer {
  shard @0 :Index;
}

interface Directory {
  exchange @0 Protocol.ShardMap -> Protocol.ShardMap;
  shard @1 ShardQuery -> ShardAnswer;
}

struct Done {
}

interface Index {
  mount @0 Protocol.MemberInfo -> Protocol.Membership;
  heartbeat @1 Protocol.Heartbeat -> Protocol.Membership;
  publish @2 Protocol.PublishedPages -> Protocol.Membership;
  withdraw @3 Protocol.WithdrawnPages -> Protocol.Membership;
  locate @4 Protocol.KeyBatch -> Protocol.Placements;
  members @5 Protocol.MemberQuery -> Protocol.MemberList;
  status @6 Protocol.StatusQuery -> Protocol.IndexStatus;
  await @7 Protocol.AwaitedPages -> Done;
}

interface Member {
  copy @0 Protocol.PageCopies -> Protocol.PageTotals;
  pin @1 Protocol.PagePins -> Protocol.PageTotals;
  clear @2 Protocol.NamespacePages -> Protocol.PageTotals;
  drain @3 Protocol.DrainRequest -> Protocol.DrainReport;
  touch @4 Protocol.KeyBatch -> Done;
  corrupt @5 Protocol.KeyBatch -> Done;
  progress @6 Protocol.StatusQuery -> Protocol.DrainProgress;
  resume @7 Protocol.DrainRequest -> Protocol.DrainProgress;
  recall @8 Protocol.PageRecall -> Protocol.Placements;
}

struct PagePiece {
  # A part of a reserved page.
  key @0 :Protocol.Key;
  offset @1 :UInt32;
  length @2 :UInt32;
}

struct PageUpload {
  reservation @0 :UInt64;
  pieces @1 :List(PagePiece);
  # Of the pieces, concatenated.
  bytes @2 :Data;
}

struct PageRange {
  # A part of a page at its leased place.
  key @0 :Protocol.Key;
  place @1 :UInt64;
  generation @2 :UInt32;
  offset @3 :UInt32;
  length @4 :UInt32;
}

struct PageRanges {
  ranges @0 :List(PageRange);
}

struct RangeOrigin {
  # From the page's header; status as range_status.
  status @0 :UInt8;
  fingerprint @1 :UInt64;
  checksum @2 :UInt64;
}

struct PageDownload {
  origins @0 :List(RangeOrigin);
  # Of the ranges, concatenated.
  bytes @1 :Data;
}

interface Node {
  attach @0 NodeProtocol.ClientInfo -> NodeProtocol.NodeInfo;
  reserve @1 NodeProtocol.WantedPages -> NodeProtocol.ReservedPages;
  commit @2 NodeProtocol.CompletePages -> Protocol.PageTotals;
  abort @3 NodeProtocol.ClientTicket -> Protocol.PageTotals;
  lookup @4 NodeProtocol.PageLookup -> NodeProtocol.LeasedPages;
  release @5 NodeProtocol.ClientTicket -> Protocol.PageTotals;
  prefetch @6 NodeProtocol.PagePrefetch -> Protocol.PageTotals;
  status @7 Protocol.StatusQuery -> NodeProtocol.NodeStatus;
  corrupt @8 Protocol.KeyBatch -> Protocol.PageTotals;
  remove @9 Protocol.KeyBatch -> Protocol.PageTotals;
  # For clients on other machines, which cannot map the memory.
  write @10 PageUpload -> Done;
  read @11 PageRanges -> PageDownload;
  clear @12 Protocol.NamespacePages -> Protocol.PageTotals;
}
