#pragma once

#include <endian.h>

#include <array>
#include <bit>
#include <cstdint>

namespace hicache {

/// A message number as sent: 8 bytes, big endian.
inline std::array<unsigned char, 8> number_frame(uint64_t number) noexcept {
  return std::bit_cast<std::array<unsigned char, 8>>(htobe64(number));
}

} // namespace hicache
