#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

/// Marks functions that nvcc compiles for the GPU, other compilers for the CPU.
#ifdef __CUDACC__
#define LLAMA_DEVICE __device__
#else
#define LLAMA_DEVICE
#endif

namespace llama {

enum class number_format : uint8_t { f32, f16, bf16 };

/// Bytes of one number.
LLAMA_DEVICE constexpr uint32_t size_of(number_format format) noexcept {
  return format == number_format::f32 ? 4 : 2;
}

/// The value of an F16 or BF16 number.
LLAMA_DEVICE constexpr float widened(number_format format, uint16_t word) noexcept {
  if (format == number_format::bf16)
    return std::bit_cast<float>(static_cast<uint32_t>(word) << 16);
  const auto sign = static_cast<uint32_t>(word & 0x8000U) << 16;
  const auto exponent = (word >> 10) & 0x1fU;
  const auto fraction = static_cast<uint32_t>(word & 0x3ffU);
  if (exponent == 0) // Zero or subnormal: fraction * 2^-24.
    return std::bit_cast<float>(sign
                                | std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24F));
  const auto wide = exponent == 0x1f ? 0xffU : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

/// The nearest F16 or BF16 number; ties to even.
LLAMA_DEVICE constexpr uint16_t narrowed(number_format format, float value) noexcept {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const auto magnitude = bits & 0x7fffffffU;
  const auto is_nan = magnitude > 0x7f800000U;
  if (format == number_format::bf16)
    return static_cast<uint16_t>(is_nan ? (bits >> 16) | 0x40U
                                        : (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  if (is_nan)
    return static_cast<uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x477ff000U)
    return static_cast<uint16_t>(sign | 0x7c00U); // Rounds beyond the largest half.
  if (magnitude < 0x38800000U) {                  // Subnormal: the addition rounds.
    const auto shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
  }
  const auto odd = (magnitude >> 13) & 1U;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + 0xfffU + odd) >> 13));
}

/// Number `index` of a row in memory.
LLAMA_DEVICE inline float number_at(number_format format, const std::byte* row, size_t index) {
  return format == number_format::f32
           ? reinterpret_cast<const float*>(row)[index]
           : widened(format, reinterpret_cast<const uint16_t*>(row)[index]);
}

LLAMA_DEVICE inline void set_number(number_format format, std::byte* row, size_t index,
                                    float value) {
  if (format == number_format::f32)
    reinterpret_cast<float*>(row)[index] = value;
  else
    reinterpret_cast<uint16_t*>(row)[index] = narrowed(format, value);
}

} // namespace llama
