#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <utility>

/// Socket addresses and their text form. Internal to transport/.
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

} // namespace hicache
