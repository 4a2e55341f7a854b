#pragma once

#include "rpc/endpoint.hpp"
#include "rpc/loop.hpp"
#include "rpc/network.hpp"

#include <chrono>
#include <string>

namespace hicache {

/// Connects without blocking, trying the host's addresses in turn. Loop thread only.
/// @param silence When an unreachable peer is detected.
kj::Promise<kj::Own<kj::AsyncIoStream>> connect_socket(rpc_loop& loop, const rpc::endpoint& where,
                                                       std::chrono::seconds silence);

/// Like rpc_network::listen. Any thread; blocks during name resolution.
result<listener> open_listener(const rpc::endpoint& where);

/// Sets socket options: no delay for small writes, and unreachable peers are detected within
/// `silence`, even on an idle connection.
void tune(kj::AsyncIoStream& stream, std::chrono::seconds silence);

/// The peer's name for log messages.
std::string peer_name(kj::AsyncIoStream& stream);

} // namespace hicache
