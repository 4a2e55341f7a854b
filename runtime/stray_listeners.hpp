#pragma once

#include <string>
#include <vector>

namespace hicache {

/// Addresses that are reachable from other machines although they were not configured.
/// @param addresses "1.2.3.4:5" or "[::1]:5".
/// @param hosts Configured hosts, by name or address; a wildcard address allows everything.
std::vector<std::string> stray_listeners(const std::vector<std::string>& addresses,
                                         const std::vector<std::string>& hosts);

/// Warns about listening sockets opened since `before` that other machines can reach and that are
/// not on an address of `host`.
/// @param library What opened them, and how to configure it.
void warn_of_stray_listeners(const std::vector<std::string>& before, const std::string& host,
                             const std::string& library);

} // namespace hicache
