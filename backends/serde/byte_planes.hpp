#pragma once

#include <cstddef>
#include <span>

namespace hicache::serde {

/// Copies every `planes`-th byte, from number `plane` on: the first, second, ... bytes of all
/// elements. The exponents of floating-point numbers resemble each other and compress; their
/// mantissas do not.
/// @pre planes is 2 or 4, plane < planes, and source.size() == planes * target.size()
void take_plane(std::span<const std::byte> source, size_t planes, size_t plane,
                std::span<std::byte> target) noexcept;

/// The inverse.
/// @pre target.size() == planes * source.size()
void put_plane(std::span<const std::byte> source, size_t planes, size_t plane,
               std::span<std::byte> target) noexcept;

} // namespace hicache::serde
