#pragma once

// For sources that use Cap'n Proto. hicache's own headers do not include it.

#include "messages/index_protocol.capnp.h"
#include "messages/message_lists.hpp"
#include "messages/node_protocol.capnp.h"
#include "messages/store_protocol.capnp.h"

namespace hicache::wire {

/// `write` encodes a value into a message. `read` decodes an untrusted one and throws kj::Exception
/// unless it is valid and within the bounds of base/limits.hpp.
#define HICACHE_DECLARE_VALUE(T, Schema)                                                           \
  void write(const T& x, schema::Schema::Builder to);                                              \
  void read(schema::Schema::Reader from, T& x);

HICACHE_INDEX_MESSAGES(HICACHE_DECLARE_VALUE)
HICACHE_NODE_MESSAGES(HICACHE_DECLARE_VALUE)
HICACHE_STORE_MESSAGES(HICACHE_DECLARE_VALUE)

#undef HICACHE_DECLARE_VALUE

} // namespace hicache::wire
