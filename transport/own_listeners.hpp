#pragma once

#include <string>
#include <vector>

namespace hicache {

/// The TCP ports that any part of this process listens on: "1.2.3.4:5" or "[::1]:5", sorted. Any
/// thread; may miss a port that is opened or closed concurrently.
std::vector<std::string> listening_addresses();

} // namespace hicache
