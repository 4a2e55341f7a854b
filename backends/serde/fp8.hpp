#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

/// Conversions between the elements of a KV cache and E4M3 of the "OCP 8-bit Floating Point
/// Specification (OFP8)", revision 1.0: one sign bit, four exponent bits with bias 7, three
/// mantissa bits. No infinities; S.1111.111 is the only NaN of each sign; the largest value is 448
/// = S.1111.110, the smallest normal one 2^-6, the smallest one 2^-9.
namespace hicache::serde {

enum class element_type : uint8_t { bf16, fp16, fp32 };

/// @relates element_type
constexpr uint32_t width_of(element_type type) noexcept {
  return type == element_type::fp32 ? 4 : 2;
}

/// Rounds to the nearest E4M3, ties to even; saturates: what is beyond 448, infinities included,
/// becomes 448 with its sign. NaN stays NaN; zeros keep their sign.
uint8_t to_e4m3(float number) noexcept;

/// Exact.
float from_e4m3(uint8_t code) noexcept;

/// Widens one element, given as its bits. Exact.
float widen(element_type type, uint32_t bits) noexcept;

/// The nearest element, ties to even, as its bits. What rounds beyond the largest finite element
/// becomes that element; infinities stay infinite.
uint32_t narrow(element_type type, float number) noexcept;

/// A scale is a power of two, stored as its exponent plus 127 in one byte (E8M0 of the "OCP
/// Microscaling Formats (MX) Specification", revision 1.0; 255 is no scale). Scaling by it is
/// exact, so the only error is the rounding to E4M3.
inline constexpr uint8_t not_a_scale = 255;

/// The smallest scale with which no element of magnitude up to `largest` saturates, within the
/// range of the format; 2^0 for 0.
/// @pre largest is finite and not negative
uint8_t scale_for(float largest) noexcept;

/// The largest magnitude of the finite elements; 0 if there is none.
/// @pre the bytes are whole elements
float largest_of(element_type type, std::span<const std::byte> elements) noexcept;

/// Writes one code per element: the element divided by the scale, as E4M3.
/// @pre scale != not_a_scale
void quantise(element_type type, uint8_t scale, std::span<const std::byte> elements,
              std::byte* codes) noexcept;

/// What the codes stand for, by scale, computed when first used. Not thread-safe.
class dequantiser {
public:
  explicit dequantiser(element_type type) : type_(type) {}

  /// Writes the element for each code: the code's value times the scale, narrowed.
  /// @pre scale != not_a_scale
  void dequantise(uint8_t scale, std::span<const std::byte> codes, std::byte* elements);

private:
  /// Elements by code, as their bits.
  using table = std::array<uint32_t, 256>;

  const table& table_for(uint8_t scale);

  element_type type_;
  std::array<bool, 256> is_known_{};
  std::array<table, 256> tables_;
};

} // namespace hicache::serde
