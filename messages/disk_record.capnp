@0xd4b8a1f06e3c7295;

# What precedes the objects of a record in a segment of the disk store (messages/disk_record.hpp). Incompatible changes need a new
# version.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("hicache::schema");

using Protocol = import "index_protocol.capnp";

struct DiskRecord {
  generation @0 :UInt64;
  sequence @1 :UInt64;
  durable @2 :UInt64;
  objects @3 :List(DiskObject);
  removals @4 :List(DiskRemoval);
}

struct DiskObject {
  key @0 :Protocol.Key;
  parent @1 :Protocol.Key;
  length @2 :UInt64;
  checksum @3 :UInt64;
  fingerprint @4 :UInt64;
  tenant @5 :UInt64;
}

struct DiskRemoval {
  key @0 :Protocol.Key;
  generation @1 :UInt64;
  offset @2 :UInt64;
}
