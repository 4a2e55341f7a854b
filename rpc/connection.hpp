#pragma once

#include "rpc/loop.hpp"
#include "rpc/services.capnp.h"
#include "rpc/sockets.hpp"
#include "rpc/tls.hpp"

#include <memory>
#include <string>

namespace hicache {

/// A connection that this process opened; closed when the last reference is gone. Loop thread only.
class rpc_connection {
public:
  virtual ~rpc_connection() noexcept(false) = default;

  /// The services of the peer.
  virtual schema::Welcome::Reader welcome() = 0;

  /// Resolves when the connection is lost.
  virtual kj::Promise<void> lost() = 0;
};

/// Connects and exchanges greetings within rpc::limits::connect_time. Loop thread only.
/// @returns a connection; fails with a sentence that names the address
kj::Promise<std::shared_ptr<rpc_connection>> open_connection(rpc_loop& loop, tls_source& tls,
                                                             const std::string& address);

} // namespace hicache
