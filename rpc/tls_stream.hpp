#pragma once

#include "rpc/tls.hpp"

#include <kj/async-io.h>

namespace hicache {

/// Makes a connection one of TLS. Whom the certificates name does not matter, only that the
/// authority signed them; kj's own TLS wants the name of a host, which members have not.
/// @returns the connection when both sides have agreed; fails with a text that begins with "TLS:"
kj::Promise<kj::Own<kj::AsyncIoStream>> wrap_tls(kj::Own<kj::AsyncIoStream> stream,
                                                 const tls_context& context, bool is_server);

} // namespace hicache
