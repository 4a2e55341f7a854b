#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace hicache {

/// Bytes that this process can take without risking an out-of-memory kill: the kernel's available
/// memory, or less if a control group of the process (version 1 or 2, e.g. of a container) has a
/// limit. Droppable file cache counts as available in both. Empty if the kernel reports nothing.
/// @param root Folder that contains /proc and /sys.
std::optional<uint64_t> available_memory(const std::filesystem::path& root = "/");

} // namespace hicache
