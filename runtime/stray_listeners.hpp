#pragma once

#include <string>
#include <vector>

namespace hicache {

/// Which of these addresses other machines reach although nobody asked for that.
/// @param addresses "1.2.3.4:5" or "[::1]:5".
/// @param hosts What was asked for, by name or number; one that stands for any interface allows
/// everything.
std::vector<std::string> stray_listeners(const std::vector<std::string>& addresses,
                                         const std::vector<std::string>& hosts);

/// Warns of what this process listens on that was not among `before`, if other machines reach it
/// and it is not an address of `host`.
/// @param library What opened it, and how it is told not to.
void warn_of_stray_listeners(const std::vector<std::string>& before, const std::string& host,
                             const std::string& library);

} // namespace hicache
