#pragma once

#include "rpc/peer_identity.hpp"
#include "rpc/tls.hpp"

#include <kj/async-io.h>

namespace hicache {

/// A connection and the identity of its peer.
struct identified_stream {
  kj::Own<kj::AsyncIoStream> stream;
  peer_identity peer;
};

/// Wraps a connection in TLS. Certificates are not matched against addresses; kj's own TLS requires
/// a host name, which members do not have.
/// @returns the connection after the handshake; fails with not_permitted (to_exception) if this
/// process is the client and the server's certificate lacks the member role, else with a text that
/// begins with "TLS:"
kj::Promise<identified_stream> wrap_tls(kj::Own<kj::AsyncIoStream> stream,
                                        const tls_context& context, bool is_server);

} // namespace hicache
