#pragma once

#include "rpc/peer_identity.hpp"
#include "rpc/tls.hpp"

#include <kj/async-io.h>

namespace hicache {

/// A connection, and who is at its other end.
struct identified_stream {
  kj::Own<kj::AsyncIoStream> stream;
  peer_identity peer;
};

/// Makes a connection one of TLS. Certificates are not compared with addresses; kj's own TLS wants
/// the name of a host, which members have not.
/// @returns the connection when both sides have agreed; fails with not_permitted (to_exception) if
/// this process connected to one whose certificate has not the role of a member, else with a text
/// that begins with "TLS:"
kj::Promise<identified_stream> wrap_tls(kj::Own<kj::AsyncIoStream> stream,
                                        const tls_context& context, bool is_server);

} // namespace hicache
