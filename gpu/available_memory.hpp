#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace hicache {

/// Bytes that this process may still take without anybody being killed for it: what the kernel says
/// is available on the machine, or less where a control group that the process is in (version 1 or
/// 2, a container's, say) has a limit. Memory of files that the kernel can drop counts as available
/// in both. Nothing where the kernel does not say.
/// @param root The folder in which /proc and /sys are.
std::optional<uint64_t> available_memory(const std::filesystem::path& root = "/");

} // namespace hicache
