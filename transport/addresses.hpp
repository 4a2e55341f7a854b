#pragma once

#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

/// Socket addresses, their text form, and options of connections. Internal to transport/.
namespace hicache {

/// Resolves "host" and "port".
/// @param flags Flags of getaddrinfo; AI_NUMERICHOST avoids a name server lookup.
std::optional<sockaddr_storage> resolve(const std::string& host, const std::string& port,
                                        int flags);

/// Splits "host:port" or "[host]:port".
std::optional<std::pair<std::string, std::string>> split_address(const std::string& address);

/// Formats an address: "1.2.3.4:5" or "[::1]:5".
std::string format_address(const sockaddr_storage& address);

/// Length in bytes of a socket address of this family.
socklen_t address_length(const sockaddr_storage& address) noexcept;

/// Sets no delay before sending, and keepalive to detect a peer that is cut off.
/// @param silence Until the first probe.
/// @param probes One each second. Sent data may stay unacknowledged as long as all of this takes.
void tune_socket(int socket, std::chrono::seconds silence, int probes) noexcept;

} // namespace hicache
