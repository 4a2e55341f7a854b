#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hicache {

/// XXH3-64 over the concatenation of the parts: the checksum of a page header.
uint64_t page_checksum(std::span<const std::span<const std::byte>> parts);

/// @copydoc page_checksum
uint64_t page_checksum(std::span<const std::span<std::byte>> parts);

} // namespace hicache
