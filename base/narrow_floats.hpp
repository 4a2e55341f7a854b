#pragma once

#include "base/host_device.hpp"

#include <bit>
#include <cstdint>

/// Floats of 16 bits, given as their bits: FP16 (IEEE 754 binary16) and BF16 (the upper half of a
/// float). Widening is exact. Narrowing gives the nearest number, ties to even; what rounds beyond
/// the largest finite number becomes that number; infinities stay infinite, and NaN stays NaN.
namespace hicache {

inline constexpr auto fp16_infinity = uint32_t{0x7C00};
inline constexpr auto bf16_infinity = uint32_t{0x7F80};
inline constexpr auto fp32_infinity = uint32_t{0x7F80'0000};

HICACHE_HOST_DEVICE constexpr float widen_bf16(uint32_t number) noexcept {
  return std::bit_cast<float>(number << 16);
}

/// Without branches, so that compilers widen several numbers at once.
HICACHE_HOST_DEVICE constexpr float widen_fp16(uint32_t number) noexcept {
  const auto sign = (number & 0x8000) << 16;
  const auto magnitude = number & 0x7FFF;
  // The exponent moves from bias 15 to bias 127 by a multiplication, which also normalises.
  const auto scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  const auto finite = std::bit_cast<uint32_t>(scaled);
  const auto special = fp32_infinity | magnitude << 13;
  const auto mask = -static_cast<uint32_t>(magnitude >= fp16_infinity);
  return std::bit_cast<float>(sign | (special & mask) | (finite & ~mask));
}

HICACHE_HOST_DEVICE constexpr uint16_t narrow_to_bf16(float number) noexcept {
  const auto bits = std::bit_cast<uint32_t>(number);
  const auto sign = bits >> 16 & 0x8000;
  const auto magnitude = bits & 0x7FFF'FFFF;
  if (magnitude > fp32_infinity)
    return static_cast<uint16_t>(bits >> 16 | 0x0040);
  const auto rounded = (magnitude + 0x7FFF + (magnitude >> 16 & 1)) >> 16;
  const auto is_overflow = rounded >= bf16_infinity && magnitude != fp32_infinity;
  return static_cast<uint16_t>(sign | (is_overflow ? bf16_infinity - 1 : rounded));
}

HICACHE_HOST_DEVICE constexpr uint16_t narrow_to_fp16(float number) noexcept {
  const auto bits = std::bit_cast<uint32_t>(number);
  const auto sign = bits >> 16 & 0x8000;
  const auto magnitude = bits & 0x7FFF'FFFF;
  if (magnitude >= fp32_infinity)
    return static_cast<uint16_t>(sign | (magnitude > fp32_infinity ? 0x7E00 : fp16_infinity));
  // Below 2^-14 numbers are 2^-24 apart; so are floats from 0.5 on.
  if (magnitude < std::bit_cast<uint32_t>(0x1p-14F)) {
    const auto shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(
      sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5F)));
  }
  const auto rounded
    = ((magnitude + 0xFFF + (magnitude >> 13 & 1)) >> 13) - (uint32_t{127 - 15} << 10);
  return static_cast<uint16_t>(sign | (rounded < fp16_infinity ? rounded : fp16_infinity - 1));
}

} // namespace hicache
