#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hicache {

/// XXH3-64 over the concatenation of the parts: the checksum of a page header.
uint64_t page_checksum(std::span<const std::span<const std::byte>> parts);

/// @copydoc page_checksum
uint64_t page_checksum(std::span<const std::span<std::byte>> parts);

/// Copies an object to its parts. Reads it once.
/// @returns its checksum
/// @pre the parts have the object's length
uint64_t copy_object(std::span<const std::byte> object,
                     std::span<const std::span<std::byte>> parts);

} // namespace hicache
