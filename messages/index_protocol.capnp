@0xe3b7c5d1a9f24086;

# Messages between processes; rpc/services.capnp has the calls. Version: index_protocol_version in index_protocol.hpp. Append fields with
# the next free number; never reuse a number.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("hicache::schema");

struct Key {
  word0 @0 :UInt64;
  word1 @1 :UInt64;
  word2 @2 :UInt64;
  word3 @3 :UInt64;
}

struct MemberInfo {
  member @0 :UInt64;
  epoch @1 :UInt64;
  protocolVersion @2 :UInt32;
  host @3 :Text;
  memoryName @4 :Text;
  pageAddress @5 :Text;
  capacityBytes @6 :UInt64;
  fingerprint @7 :UInt64;
  exportedHeaders @8 :UInt64;
  exportedObjects @9 :UInt64;
  exportedObjectBytes @10 :UInt64;
  exportedCount @11 :UInt64;
  address @12 :Text;
  resumes @13 :UInt64;
  isClosed @14 :Bool;
}

struct IndexShard {
  number @0 :UInt32;
  address @1 :Text;
  epoch @2 :UInt64;
}

struct ShardMap {
  shards @0 :List(IndexShard);
}

struct Membership {
  known @0 :Bool;
  memberTtlMs @1 :UInt64;
  shardsDigest @2 :UInt64;
  refused @3 :List(Key);
  lost @4 :List(Key);
  resumed @5 :Bool;
  takesDisk @6 :Bool;
}

struct MemberCounters {
  hits @0 :UInt64;
  misses @1 :UInt64;
  errors @2 :UInt64;
  corrupt @3 :UInt64;
  evicted @4 :UInt64;
  pinnedBytes @5 :UInt64;
}

struct Heartbeat {
  member @0 :UInt64;
  epoch @1 :UInt64;
  counters @2 :MemberCounters;
  leaves @3 :Bool;
  isClosed @4 :Bool;
}

struct AnnouncedPage {
  key @0 :Key;
  offset @1 :UInt64;
  length @2 :UInt32;
  generation @3 :UInt32;
}

struct PublishedPages {
  member @0 :UInt64;
  epoch @1 :UInt64;
  pages @2 :List(AnnouncedPage);
  seconds @3 :UInt32;
  onlyNew @4 :Bool;
}

struct WithdrawnPages {
  member @0 :UInt64;
  epoch @1 :UInt64;
  keys @2 :List(Key);
}

struct KeyBatch {
  keys @0 :List(Key);
  withDisk @1 :Bool;
}

struct AwaitedPages {
  keys @0 :List(Key);
  # known[i] replicas of key i are known.
  known @1 :List(UInt8);
  waitMs @2 :UInt32;
}

struct Replica {
  member @0 :UInt64;
  offset @1 :UInt64;
  length @2 :UInt32;
  generation @3 :UInt32;
}

struct Placements {
  # counts[i] replicas belong to key i, in order.
  counts @0 :List(UInt8);
  replicas @1 :List(Replica);
  shardsDigest @2 :UInt64;
  isPartial @3 :Bool;
}

struct MemberQuery {
  members @0 :List(UInt64);
  from @1 :UInt64;
  most @2 :UInt32;
}

struct MemberList {
  members @0 :List(MemberInfo);
  hasMore @1 :Bool;
}

struct StatusQuery {
  from @0 :UInt64;
  most @1 :UInt32;
}

struct MemberState {
  info @0 :MemberInfo;
  pages @1 :UInt64;
  bytes @2 :UInt64;
  silentMs @3 :UInt64;
  counters @4 :MemberCounters;
  diskPages @5 :UInt64;
  diskBytes @6 :UInt64;
}

struct IndexStatus {
  members @0 :List(MemberState);
  keys @1 :UInt64;
  replicas @2 :UInt64;
  bytes @3 :UInt64;
  lookups @4 :UInt64;
  keysAsked @5 :UInt64;
  keysFound @6 :UInt64;
  membersLost @7 :UInt64;
  uptimeMs @8 :UInt64;
  secondKeys @9 :UInt64;
  hasMore @10 :Bool;
  diskReplicas @11 :UInt64;
  diskBytes @12 :UInt64;
}

struct PageTotals {
  pages @0 :UInt64;
  bytes @1 :UInt64;
  leftOut @2 :List(Key);
}

struct PagePins {
  kind @0 :UInt8;
  ttlMs @1 :UInt64;
  keys @2 :List(Key);
}

struct NamespacePages {
  fingerprint @0 :UInt64;
  evictFirst @1 :Bool;
}

struct CopiedPage {
  page @0 :AnnouncedPage;
  parent @1 :Key;
  fingerprint @2 :UInt64;
  tenant @3 :UInt64;
  pin @4 :UInt8;
  pinTtlMs @5 :UInt64;
  copies @6 :UInt8 = 1;
}

struct PageCopies {
  source @0 :UInt64;
  pages @1 :List(CopiedPage);
}

struct PageRecall {
  fingerprint @0 :UInt64;
  keys @1 :List(Key);
  waitMs @2 :UInt32;
}

struct DrainRequest {
  force @0 :Bool;
}

struct DrainReport {
  moved @0 :UInt64;
  withdrawn @1 :UInt64;
}

struct DrainProgress {
  isDraining @0 :Bool;
  isClosed @1 :Bool;
  pages @2 :UInt64;
  tried @3 :UInt64;
  moved @4 :UInt64;
}
