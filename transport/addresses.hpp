#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <utility>

/// Addresses of sockets and their text. Internal to transport/.
namespace hicache {

/// Resolves "host" and "port".
/// @param flags getaddrinfo's; AI_NUMERICHOST keeps it from asking a name server.
std::optional<sockaddr_storage> resolve(const std::string& host, const std::string& port,
                                        int flags);

/// Splits "host:port" or "[host]:port".
std::optional<std::pair<std::string, std::string>> split_address(const std::string& address);

/// "1.2.3.4:5" or "[::1]:5".
std::string format_address(const sockaddr_storage& address);

/// Bytes of a socket address of its family.
socklen_t address_length(const sockaddr_storage& address) noexcept;

} // namespace hicache
