@0xe7c40b92d15f8a36;

# How hicache talks to a store in another process (docs/backends.md, "external"), over a Unix socket of type SOCK_STREAM. Each message is
# preceded by its length in bytes, 32 bits, little-endian. The client sends StoreHello with the descriptor of a window, memory that both map,
# and gets StoreWelcome; then StoreRequest and StoreAnswer alternate. Objects lie in the window. Append fields with the next free number; never
# reuse a number.

using Cxx = import "/capnp/c++.capnp";
using Protocol = import "/messages/index_protocol.capnp";
$Cxx.namespace("hicache::schema");

struct StoreHello {
  version @0 :UInt32;
  windowBytes @1 :UInt64;
  # The user's settings of the store, a JSON object.
  options @2 :Text;
}

struct StoreWelcome {
  # Why the store cannot be used, one sentence; empty if it can.
  error @0 :Text;
  name @1 :Text;
  survivesRestarts @2 :Bool;
  isShared @3 :Bool;
  # Reads may have room for more bytes than the object has.
  tellsLengths @4 :Bool;
  # 0: no preference.
  preferredBatch @5 :UInt32;
  preferredObjectBytes @6 :UInt64;
  removes @7 :Bool;
  # It answers list.
  lists @8 :Bool;
}

enum StoreRequestKind {
  lookup @0;
  read @1;
  write @2;
  remove @3;
  health @4;
  # Of a store whose welcome says so: some of its objects, in an order of its own.
  list @5;
}

struct StoreSlot {
  key @0 :Protocol.Key;
  # Of a write: the object before it in its prefix; all zero if it is the first.
  parent @1 :Protocol.Key;
  # Of reads and writes: where the object belongs or lies in the window.
  offset @2 :UInt64;
  bytes @3 :UInt64;
}

struct StoreRequest {
  number @0 :UInt64;
  kind @1 :StoreRequestKind;
  # When the client stops waiting.
  milliseconds @2 :UInt32;
  objects @3 :List(StoreSlot);
  # Of list: where it begins; empty, or the next of the answer before.
  start @4 :Text;
}

enum StoreStatus {
  done @0;
  # A write found the object there, and changed nothing.
  present @1;
  absent @2;
  full @3;
  failed @4;
  # The store cannot do this.
  unsupported @5;
  # A read found an object that does not belong into its room: a longer one, or one of another length.
  misfit @6;
}

struct StoreOutcome {
  status @0 :StoreStatus;
  # Of a read: the object's length.
  bytes @1 :UInt64;
  detail @2 :Text;
}

struct StoreListed {
  key @0 :Protocol.Key;
  bytes @1 :UInt64;
}

struct StoreAnswer {
  # That of the call.
  number @0 :UInt64;
  # Why the whole call failed; empty if it did not.
  error @1 :Text;
  # As many as the call has, in its order.
  objects @2 :List(StoreOutcome);
  # Of health.
  isOk @3 :Bool;
  detail @4 :Text;
  # Of list: up to 1024 objects, and where the rest begins; empty after the last.
  listed @5 :List(StoreListed);
  next @6 :Text;
}
