#pragma once

#include <array>
#include <cstdint>

namespace hicache {

/// A message number as sent: 8 bytes, big endian.
inline std::array<unsigned char, 8> number_frame(uint64_t number) noexcept {
  auto frame = std::array<unsigned char, 8>{};
  for (auto& byte : frame) {
    byte = static_cast<unsigned char>(number >> 56);
    number <<= 8;
  }
  return frame;
}

} // namespace hicache
