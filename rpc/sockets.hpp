#pragma once

#include "rpc/endpoint.hpp"
#include "rpc/loop.hpp"
#include "rpc/network.hpp"

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

namespace hicache {

/// Connects without blocking: to each address of the host, one after the other. The loop's thread.
/// @param silence After this long a peer that is cut off is noticed.
kj::Promise<kj::Own<kj::AsyncIoStream>> connect_socket(rpc_loop& loop, const rpc::endpoint& where,
                                                       std::chrono::seconds silence);

/// As rpc_network::listen. Any thread; blocks while a name is looked up.
result<listener> open_listener(const rpc::endpoint& where);

/// What every connection is set to: nothing waits for more to send, and a peer that is cut off is
/// noticed within `silence`, whether this side sends or not.
void tune(kj::AsyncIoStream& stream, std::chrono::seconds silence);

/// Whom a connection leads to, for people.
std::string peer_name(kj::AsyncIoStream& stream);

} // namespace hicache
