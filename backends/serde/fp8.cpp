#include "backends/serde/fp8.hpp"

#include "base/check.hpp"
#include "base/narrow_floats.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace hicache::serde {

namespace {

constexpr auto scale_bias = 127;

// -- elements -----------------------------------------------------------------

/// Each kind of element: its bits, how they are widened, and the bits of its infinity.
struct bf16_element {
  using bits = uint16_t;
  static constexpr uint32_t infinity = bf16_infinity;

  static float widen(uint32_t element) noexcept { return widen_bf16(element); }
};

struct fp16_element {
  using bits = uint16_t;
  static constexpr uint32_t infinity = fp16_infinity;

  static float widen(uint32_t element) noexcept { return widen_fp16(element); }
};

struct fp32_element {
  using bits = uint32_t;
  static constexpr uint32_t infinity = fp32_infinity;

  static float widen(uint32_t element) noexcept { return std::bit_cast<float>(element); }
};

template <class Element>
uint32_t load(const std::byte* source) noexcept {
  auto bits = typename Element::bits{};
  std::memcpy(&bits, source, sizeof bits);
  return bits;
}

/// Calls with the kind of element as a type.
template <class Call>
auto with_element(element_type type, Call call) {
  switch (type) {
    case element_type::bf16:
      return call(bf16_element{});
    case element_type::fp16:
      return call(fp16_element{});
    case element_type::fp32:
      break;
  }
  return call(fp32_element{});
}

// -- E4M3 ---------------------------------------------------------------------

constexpr auto e4m3_max = int32_t{0x7E};
constexpr auto e4m3_nan = int32_t{0x7F};

/// One of two numbers, by a mask: a compiler turns a conditional around floats into a branch.
inline int32_t chosen(bool condition, int32_t yes, int32_t no) noexcept {
  const auto mask = -static_cast<int32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

/// Without branches and unsigned comparisons, which every x86-64 does for several numbers at once.
inline uint8_t round_to_e4m3(float number) noexcept {
  const auto bits = std::bit_cast<int32_t>(number);
  const auto sign = static_cast<uint32_t>(bits) >> 24 & 0x80;
  const auto magnitude = bits & 0x7FFF'FFFF;
  // Normal: keep three bits of the mantissa, and move the exponent from bias 127 to bias 7. NaN
  // would overflow and is replaced below.
  const auto limited = std::min(magnitude, std::bit_cast<int32_t>(512.0F));
  const auto rounded = ((limited + 0x7FFFF + (limited >> 20 & 1)) >> 20) - ((127 - 7) << 3);
  const auto normal = std::min(rounded, e4m3_max);
  // Below 2^-6 codes are 2^-9 apart; so are floats from 2^14 on.
  const auto small = std::bit_cast<int32_t>(std::bit_cast<float>(limited) + 0x1p14F)
                     - std::bit_cast<int32_t>(0x1p14F);
  const auto finite = chosen(magnitude < std::bit_cast<int32_t>(0x1p-6F), small, normal);
  const auto code = chosen(magnitude > static_cast<int32_t>(fp32_infinity), e4m3_nan, finite);
  return static_cast<uint8_t>(sign | static_cast<uint32_t>(code));
}

float power_of_two(int exponent) noexcept {
  return std::ldexp(1.0F, exponent);
}

} // namespace

uint8_t to_e4m3(float number) noexcept {
  return round_to_e4m3(number);
}

float from_e4m3(uint8_t code) noexcept {
  const auto sign = (code & 0x80) != 0 ? -1.0F : 1.0F;
  const auto exponent = code >> 3 & 15;
  const auto mantissa = static_cast<float>(code & 7);
  if ((code & 0x7F) == uint8_t{e4m3_nan})
    return std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
  if (exponent == 0)
    return sign * std::ldexp(mantissa, -9);
  return sign * std::ldexp(8 + mantissa, exponent - 7 - 3);
}

float widen(element_type type, uint32_t bits) noexcept {
  return with_element(type, [bits](auto element) { return element.widen(bits); });
}

uint32_t narrow(element_type type, float number) noexcept {
  switch (type) {
    case element_type::bf16:
      return narrow_to_bf16(number);
    case element_type::fp16:
      return narrow_to_fp16(number);
    case element_type::fp32:
      break;
  }
  return std::bit_cast<uint32_t>(number);
}

uint8_t scale_for(float largest) noexcept {
  HICACHE_CHECK(std::isfinite(largest) && largest >= 0);
  if (largest == 0)
    return scale_bias;
  auto exponent = 0;
  // 448 is 0.875 * 2^9.
  const auto fraction = std::frexp(largest, &exponent);
  exponent -= fraction <= 0.875F ? 9 : 8;
  return static_cast<uint8_t>(std::clamp(exponent + scale_bias, 0, 254));
}

float largest_of(element_type type, std::span<const std::byte> elements) noexcept {
  return with_element(type, [&]<class Element>(Element) {
    // Signed: magnitudes are positive, and every x86-64 finds the larger of eight of them at once.
    using magnitude = std::make_signed_t<typename Element::bits>;
    HICACHE_CHECK(elements.size() % sizeof(magnitude) == 0);
    auto largest = magnitude{0};
    for (auto i = size_t{0}; i < elements.size(); i += sizeof(magnitude)) {
      auto next = magnitude{};
      std::memcpy(&next, elements.data() + i, sizeof next);
      next &= std::numeric_limits<magnitude>::max();
      largest = std::max(largest, next < magnitude{Element::infinity} ? next : magnitude{0});
    }
    return Element::widen(static_cast<uint32_t>(largest));
  });
}

void quantise(element_type type, uint8_t scale, std::span<const std::byte> elements,
              std::byte* codes) noexcept {
  HICACHE_CHECK(scale != not_a_scale);
  const auto factor = power_of_two(scale_bias - scale);
  with_element(type, [&]<class Element>(Element) {
    constexpr auto width = sizeof(typename Element::bits);
    const auto count = elements.size() / width;
    for (auto i = size_t{0}; i < count; ++i) {
      const auto number = Element::widen(load<Element>(elements.data() + i * width));
      codes[i] = static_cast<std::byte>(round_to_e4m3(number * factor));
    }
  });
}

void dequantiser::dequantise(uint8_t scale, std::span<const std::byte> codes, std::byte* elements) {
  HICACHE_CHECK(scale != not_a_scale);
  const auto& values = table_for(scale);
  with_element(type_, [&]<class Element>(Element) {
    using bits = typename Element::bits;
    for (auto i = size_t{0}; i < codes.size(); ++i) {
      const auto value = static_cast<bits>(values[std::to_integer<size_t>(codes[i])]);
      std::memcpy(elements + i * sizeof value, &value, sizeof value);
    }
  });
}

const dequantiser::table& dequantiser::table_for(uint8_t scale) {
  auto& values = tables_[scale];
  if (!is_known_[scale]) {
    for (auto code = size_t{0}; code < values.size(); ++code) {
      const auto value = std::ldexp(from_e4m3(static_cast<uint8_t>(code)), scale - scale_bias);
      // The largest elements may round up beyond the largest float.
      constexpr auto largest = std::numeric_limits<float>::max();
      values[code] = narrow(type_, std::isinf(value) ? std::copysign(largest, value) : value);
    }
    is_known_[scale] = true;
  }
  return values;
}

} // namespace hicache::serde
