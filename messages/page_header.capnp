@0xc1a5d27b6c4e9f31;

# The header of a page in L3. Only data fields, so the encoded size is fixed. Incompatible changes need a new version.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("hicache::schema");

struct PageHeader {
  magic @0 :UInt32;
  version @1 :UInt16;
  generation @2 :UInt32;
  fingerprint @3 :UInt64;
  key0 @4 :UInt64;
  key1 @5 :UInt64;
  key2 @6 :UInt64;
  key3 @7 :UInt64;
  length @8 :UInt64;
  checksum @9 :UInt64;
  # Only in memory that outlives its process; backends/cluster/lasting_memory.hpp.
  keptCheck @10 :UInt32;
  copies @11 :UInt8;
  held @12 :UInt8;
}
