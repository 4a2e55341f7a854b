#pragma once

#include "backends/blocking_store.hpp"
#include "backends/redis/redis_client.hpp"
#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace hicache {

struct redis_options {
  redis_servers servers;
  /// Precedes the names of all values. Printable characters without spaces and braces; at most 128.
  std::string key_prefix = "hicache:";
  /// Object bytes in one value; a longer object takes several. From redis_chunk_min to
  /// redis_chunk_max.
  uint64_t chunk_bytes = uint64_t{4} << 20;
  /// When the server forgets an object, counted from its write; 0: never.
  std::chrono::milliseconds ttl{0};
  /// Bound on the bytes of the objects that this process wrote; it evicts its own. 0: the server's
  /// `maxmemory` and its policy alone decide, and this process counts nothing.
  uint64_t max_bytes = 0;
  /// `fingerprint_of` the namespace. Objects of another one do not verify. Empty: objects of any
  /// verify, and each that is written names its own.
  std::optional<uint64_t> fingerprint = 0;
  /// Objects that do not verify are left alone.
  bool keeps_broken = false;
};

/// Stores objects in Redis or Valkey, in one server or a cluster, over pipelined connections.
///
/// A call ends at its deadline, except that resolving the name of a server may take two seconds
/// more. A write whose reply did not arrive in time has failed for its caller, but the object may
/// be there. A value that does not verify is removed.
/// @param clock Must outlive the store.
/// @returns invalid_argument; peer_unreachable or io_failure if no server can be used; with a
/// sentence
result<std::unique_ptr<blocking_store>> make_redis_backend(redis_options options,
                                                           const clock_source& clock);

} // namespace hicache
