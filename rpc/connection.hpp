#pragma once

#include "rpc/loop.hpp"
#include "rpc/services.capnp.h"
#include "rpc/sockets.hpp"
#include "rpc/tls.hpp"

#include <chrono>
#include <memory>
#include <string>

namespace hicache {

/// A connection that this process opened. The loop's thread; closed when nobody holds it.
class rpc_connection {
public:
  virtual ~rpc_connection() noexcept(false) = default;

  /// What the peer serves.
  virtual schema::Welcome::Reader welcome() = 0;

  /// Ready when the connection is lost.
  virtual kj::Promise<void> lost() = 0;
};

/// Connects, and hears who is there, within rpc::limits::connect_time. The loop's thread.
/// @returns a connection; fails with a sentence that names the address
kj::Promise<std::shared_ptr<rpc_connection>> open_connection(rpc_loop& loop, tls_source& tls,
                                                             const std::string& address);

} // namespace hicache
