#pragma once

#include <string>
#include <vector>

namespace hicache {

/// The TCP ports on which this process listens, whoever in it opened them: "1.2.3.4:5" or
/// "[::1]:5", sorted. Any thread; a port that is opened or closed meanwhile may be missing.
std::vector<std::string> listening_addresses();

} // namespace hicache
