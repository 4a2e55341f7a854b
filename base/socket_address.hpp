#pragma once

#include <sys/socket.h>

#include <chrono>
#include <string>
#include <vector>

namespace hicache {

/// What a socket is bound or connected to.
struct socket_address {
  sockaddr_storage bytes{};
  socklen_t length = 0;

  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&bytes); }
};

/// The address of a path; a longer one than an address holds is cut.
socket_address path_address(const std::string& path);

/// The addresses of a host, for streams; empty if it cannot be resolved.
/// @param flags Of getaddrinfo: AI_NUMERICHOST avoids a name server lookup.
std::vector<socket_address> addresses_of(const std::string& host, const std::string& port,
                                         int flags);

/// A numeric address of IPv4 or IPv6, without brackets.
bool is_ip_address(const std::string& host);

/// Binds a socket to a path, accessible to its owner only, since any process that can open it has
/// full access. Replaces a socket left by a crash.
bool bind_path(int socket, const std::string& path);

/// Sets no delay before sending, and keepalive to detect a peer that is cut off.
/// @param silence Until the first probe.
/// @param probes One each second. Sent data may stay unacknowledged as long as all of this takes.
void tune_socket(int socket, std::chrono::seconds silence, int probes) noexcept;

} // namespace hicache
