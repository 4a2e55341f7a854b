#include "backends/serde/fp8.hpp"
#include "backends/serde/kv_object.hpp"
#include "tests/backends/serde/serde_support.hpp"

#include <cmath>
#include <limits>
#include <map>

// E4M3 as the OFP8 specification defines it, written anew from its table: value =
// (-1)^S * 2^(E-7) * (1 + M/8), subnormal (-1)^S * 2^-6 * M/8, NaN for S.1111.111.
namespace hicache::test {
namespace {

using serde::element_type;

double value_of(int code) {
  const auto exponent = code >> 3 & 15;
  const auto mantissa = code & 7;
  const auto magnitude
    = exponent == 0 ? std::exp2(-6) * mantissa / 8 : std::exp2(exponent - 7) * (1 + mantissa / 8.0);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// The nearest of the 127 magnitudes; of two equally near ones that with an even mantissa.
int nearest_code(double number) {
  const auto sign = std::signbit(number) ? 0x80 : 0;
  if (std::isnan(number))
    return sign | 0x7F;
  const auto magnitude = std::min(std::abs(number), 448.0);
  auto best = 0;
  for (auto code = 1; code <= 0x7E; ++code) {
    const auto here = std::abs(value_of(code) - magnitude);
    const auto there = std::abs(value_of(best) - magnitude);
    if (here < there || (here == there && code % 2 == 0))
      best = code;
  }
  return sign | best;
}

/// As nearest_code, in steps instead of a search over all codes.
class fast_nearest {
public:
  fast_nearest() {
    for (auto code = 0; code <= 0x7E; ++code)
      codes_.emplace(value_of(code), code);
  }

  int operator()(double number) const {
    const auto sign = std::signbit(number) ? 0x80 : 0;
    if (std::isnan(number))
      return sign | 0x7F;
    const auto magnitude = std::min(std::abs(number), 448.0);
    const auto above = codes_.lower_bound(magnitude);
    if (above->first == magnitude)
      return sign | above->second;
    const auto below = std::prev(above);
    const auto up = above->first - magnitude;
    const auto down = magnitude - below->first;
    return sign
           | (up < down || (up == down && above->second % 2 == 0) ? above->second : below->second);
  }

private:
  std::map<double, int> codes_;
};

TEST(Fp8Test, HasTheValuesOfTheSpecification) {
  for (auto code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F)
      EXPECT_TRUE(std::isnan(serde::from_e4m3(static_cast<uint8_t>(code))));
    else
      EXPECT_EQ(serde::from_e4m3(static_cast<uint8_t>(code)), value_of(code)) << code;
  }
  EXPECT_EQ(serde::from_e4m3(0x7E), 448);
  EXPECT_EQ(serde::from_e4m3(0x08), std::exp2(-6));
  EXPECT_EQ(serde::from_e4m3(0x07), 0.875 * std::exp2(-6));
  EXPECT_EQ(serde::from_e4m3(0x01), std::exp2(-9));
}

TEST(Fp8Test, RoundsTheCornerCasesAsTheSpecificationSays) {
  constexpr auto infinity = std::numeric_limits<float>::infinity();
  constexpr auto nan = std::numeric_limits<float>::quiet_NaN();
  const auto cases = std::vector<std::pair<float, int>>{
    {0.0F, 0x00},       {-0.0F, 0x80},    {1.0F, 0x38},     {-1.0F, 0xB8},      {448.0F, 0x7E},
    {464.0F, 0x7E},     {1e30F, 0x7E},    {infinity, 0x7E}, {-infinity, 0xFE},  {nan, 0x7F},
    {0x1p-6F, 0x08},    {0x1p-9F, 0x01},  {0x1p-10F, 0x00}, {0x1.8p-10F, 0x01}, {0x1.8p-9F, 0x02},
    {0x1.ep-7F, 0x08},  {0x1.1p0F, 0x38}, {0x1.3p0F, 0x3A}, {0x1.fp-1F, 0x38},  {0x1p-149F, 0x00},
    {-0x1p-149F, 0x80}, {-0x1p-9F, 0x81}, {240.0F, 0x77},   {248.0F, 0x78}};
  for (const auto& [number, code] : cases) {
    EXPECT_EQ(serde::to_e4m3(number), code) << number;
    EXPECT_EQ(nearest_code(number), code) << number << ", the test's own reference";
  }
  EXPECT_EQ(serde::to_e4m3(std::copysign(nan, -1.0F)), 0xFF);
}

TEST(Fp8Test, EachCodeRoundsToItself) {
  for (auto code = 0; code < 256; ++code)
    EXPECT_EQ(serde::to_e4m3(serde::from_e4m3(static_cast<uint8_t>(code))), code);
}

TEST(Fp8Test, RoundsEachBf16AndFp16NumberAsTheReference) {
  const auto reference = fast_nearest{};
  for (const auto type : {element_type::bf16, element_type::fp16})
    for (auto bits = uint32_t{0}; bits < 0x10000; ++bits) {
      const auto number = serde::widen(type, bits);
      ASSERT_EQ(serde::to_e4m3(number), reference(number)) << std::hex << bits;
    }
}

TEST(Fp8Test, RoundsFp32NumbersAsTheReference) {
  const auto reference = fast_nearest{};
  auto random = std::mt19937{1};
  for (auto i = 0; i < 2'000'000; ++i) {
    // Half of them near the range of E4M3, half anywhere.
    auto bits = static_cast<uint32_t>(random());
    if (i % 2 == 0)
      bits = (bits & 0x807F'FFFF) | (115 + bits % 22) << 23;
    const auto number = std::bit_cast<float>(bits);
    ASSERT_EQ(serde::to_e4m3(number), reference(number)) << std::hex << bits;
  }
  // Each tie between two codes, and its neighbours.
  for (auto code = 0; code < 0x7E; ++code) {
    const auto tie = static_cast<float>((value_of(code) + value_of(code + 1)) / 2);
    for (const auto number : {std::nextafter(tie, 0.0F), tie, std::nextafter(tie, 1000.0F)})
      ASSERT_EQ(serde::to_e4m3(number), nearest_code(number)) << number;
  }
}

TEST(Fp8Test, WidensFp16AsIeee754Defines) {
  for (auto bits = uint32_t{0}; bits < 0x10000; ++bits) {
    const auto sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    const auto exponent = static_cast<int>(bits >> 10 & 31);
    const auto mantissa = static_cast<double>(bits & 1023);
    const auto number = serde::widen(element_type::fp16, bits);
    if (exponent == 31)
      EXPECT_TRUE(mantissa == 0 ? std::isinf(number) : std::isnan(number)) << bits;
    else if (exponent == 0)
      EXPECT_EQ(number, sign * std::ldexp(mantissa, -24)) << bits;
    else
      EXPECT_EQ(number, sign * std::ldexp(1024 + mantissa, exponent - 25)) << bits;
    EXPECT_EQ(std::signbit(number), sign < 0);
  }
}

TEST(Fp8Test, NarrowsEachElementToItselfAndTiesToEven) {
  for (const auto type : {element_type::bf16, element_type::fp16})
    for (auto bits = uint32_t{0}; bits < 0x10000; ++bits) {
      const auto number = serde::widen(type, bits);
      if (std::isnan(number)) {
        EXPECT_TRUE(std::isnan(serde::widen(type, serde::narrow(type, number))));
        continue;
      }
      ASSERT_EQ(serde::narrow(type, number), bits) << std::hex << bits;
      const auto next = serde::widen(type, bits + 1);
      if (std::isnan(next) || std::isinf(next) || (bits & 0x7FFF) == 0x7FFF)
        continue;
      const auto middle = (static_cast<double>(number) + next) / 2;
      const auto tie = static_cast<float>(middle);
      if (tie == middle) {
        ASSERT_EQ(serde::narrow(type, tie), bits + bits % 2) << std::hex << bits;
      }
    }
  EXPECT_EQ(serde::narrow(element_type::fp16, 65536.0F), 0x7BFFu);
  EXPECT_EQ(serde::narrow(element_type::fp16, -65536.0F), 0xFBFFu);
  EXPECT_EQ(serde::narrow(element_type::bf16, std::numeric_limits<float>::max()), 0x7F7Fu);
}

TEST(Fp8Test, TheScaleIsTheSmallestThatDoesNotSaturate) {
  EXPECT_EQ(serde::scale_for(448.0F), 127);
  EXPECT_EQ(serde::scale_for(std::nextafter(448.0F, 1000.0F)), 128);
  EXPECT_EQ(serde::scale_for(224.0F), 126);
  EXPECT_EQ(serde::scale_for(1.0F), 127 - 8);
  EXPECT_EQ(serde::scale_for(0.0F), 127);
  EXPECT_EQ(serde::scale_for(std::numeric_limits<float>::max()), 127 + 120);
  EXPECT_EQ(serde::scale_for(0x1p-149F), 0);
  auto random = std::mt19937{2};
  for (auto i = 0; i < 100'000; ++i) {
    const auto largest = std::abs(std::bit_cast<float>(static_cast<uint32_t>(random())));
    if (!std::isfinite(largest) || largest < 0x1p-110F)
      continue;
    const auto scale = serde::scale_for(largest);
    EXPECT_LE(largest, std::ldexp(448.0, scale - 127));
    EXPECT_GT(largest, std::ldexp(448.0, scale - 128));
  }
}

/// What docs/backends.md states: an element is off by at most 1/16 of itself or 2^-10 of the scale,
/// and half a step of its own type; the scale is at most 1/224 of the largest element.
TEST(Fp8Test, KeepsTheStatedErrorBound) {
  auto random = std::mt19937{3};
  for (const auto type : {element_type::bf16, element_type::fp16, element_type::fp32}) {
    auto values = std::make_unique<serde::dequantiser>(type);
    const auto half_step = type == element_type::bf16   ? std::exp2(-9)
                           : type == element_type::fp16 ? std::exp2(-12)
                                                        : std::exp2(-25);
    for (auto round = 0; round < 300; ++round) {
      const auto width = serde::width_of(type);
      auto elements = page_bytes(256 * width);
      auto normal = std::normal_distribution<float>{0, std::ldexp(1.0F, round % 30 - 15)};
      for (auto i = size_t{0}; i < 256; ++i) {
        const auto bits = serde::narrow(type, normal(random));
        std::memcpy(elements.data() + i * width, &bits, width);
      }
      const auto largest = serde::largest_of(type, elements);
      const auto scale = serde::scale_for(largest);
      auto codes = page_bytes(256);
      auto back = page_bytes(elements.size());
      serde::quantise(type, scale, elements, codes.data());
      values->dequantise(scale, codes, back.data());
      const auto step = std::exp2(scale - 127);
      EXPECT_LE(step, largest / 224);
      for (auto i = size_t{0}; i < 256; ++i) {
        auto was = uint32_t{0};
        auto is = uint32_t{0};
        std::memcpy(&was, elements.data() + i * width, width);
        std::memcpy(&is, back.data() + i * width, width);
        const double x = serde::widen(type, was);
        const double y = serde::widen(type, is);
        const auto bound = std::max(std::abs(x) / 16, std::exp2(-10) * step);
        // Subnormal elements of fp16 are 2^-24 apart.
        const auto own
          = std::max(half_step * std::abs(y), type == element_type::fp16 ? std::exp2(-25) : 0.0);
        EXPECT_LE(std::abs(x - y), bound + own) << x << " became " << y;
      }
    }
  }
}

TEST(Fp8Test, KeepsNotANumberAndSaturatesInfinitiesToTheLargestFiniteElement) {
  for (const auto type : {element_type::bf16, element_type::fp16, element_type::fp32}) {
    const auto width = serde::width_of(type);
    const auto numbers = std::vector<float>{std::numeric_limits<float>::quiet_NaN(),
                                            std::numeric_limits<float>::infinity(),
                                            -std::numeric_limits<float>::infinity(), 448.0F, -0.0F};
    auto elements = page_bytes(numbers.size() * width);
    for (auto i = size_t{0}; i < numbers.size(); ++i) {
      const auto bits = serde::narrow(type, numbers[i]);
      std::memcpy(elements.data() + i * width, &bits, width);
    }
    EXPECT_EQ(serde::largest_of(type, elements), 448.0F);
    auto codes = page_bytes(numbers.size());
    auto back = elements;
    serde::quantise(type, 127, elements, codes.data());
    auto values = std::make_unique<serde::dequantiser>(type);
    values->dequantise(127, codes, back.data());
    const auto at = [&](size_t i) {
      auto bits = uint32_t{0};
      std::memcpy(&bits, back.data() + i * width, width);
      return serde::widen(type, bits);
    };
    EXPECT_TRUE(std::isnan(at(0)));
    EXPECT_EQ(at(1), 448);
    EXPECT_EQ(at(2), -448);
    EXPECT_EQ(at(3), 448);
    EXPECT_TRUE(at(4) == 0 && std::signbit(at(4)));
  }
}

TEST(Fp8Test, TheLargestElementsOfEachTypeDoNotBecomeInfinite) {
  for (const auto& [type, bits] :
       {std::pair{element_type::bf16, 0x7F7Fu}, std::pair{element_type::fp16, 0x7BFFu},
        std::pair{element_type::fp32, 0x7F7F'FFFFu}}) {
    const auto width = serde::width_of(type);
    auto element = page_bytes(width);
    std::memcpy(element.data(), &bits, width);
    const auto scale = serde::scale_for(serde::largest_of(type, element));
    auto code = page_bytes(1);
    auto back = page_bytes(width);
    serde::quantise(type, scale, element, code.data());
    serde::dequantiser{type}.dequantise(scale, code, back.data());
    auto found = uint32_t{0};
    std::memcpy(&found, back.data(), width);
    EXPECT_EQ(found, bits);
  }
}

// -- objects ----------------------------------------------------------------------

/// Where each element of an object belongs, by the geometry of the pool: object bytes in order,
/// from the rows of a pool of one page and the heads of the object.
struct located {
  kv_part part;
  uint32_t layer;
  uint32_t head;
};

std::vector<located> locate(const serde::kv_object_shape& objects) {
  const auto geometry = pool_geometry{objects.shape, objects.layout, 1};
  // Who owns each byte of the page.
  auto owners = std::vector<located>(geometry.page_bytes());
  for (const auto part : geometry.parts())
    for (auto layer = uint32_t{0}; layer < objects.shape.layers; ++layer)
      for (auto column = uint32_t{0}; column < geometry.columns(part); ++column) {
        const auto run = geometry.rows(layer, part, 0, column);
        const auto heads = objects.shape.kv_heads / geometry.columns(part);
        for (auto row = uint64_t{0}; row < run.rows; ++row)
          for (auto i = uint64_t{0}; i < run.row_bytes; ++i)
            owners[run.offset + row * run.stride + i]
              = {part, layer, column + static_cast<uint32_t>(i / (run.row_bytes / heads))};
      }
  auto object = std::vector<located>{};
  for (const auto& run : geometry.object_runs(0, {0, objects.heads}))
    object.insert(object.end(), owners.begin() + static_cast<ptrdiff_t>(run.offset),
                  owners.begin() + static_cast<ptrdiff_t>(run.offset + run.length));
  return object;
}

TEST(KvObjectTest, EachHeadHasItsOwnScaleInEachLayerOfKAndV) {
  for (const auto layout : {host_layout::page_head, host_layout::page_first,
                            host_layout::page_first_direct, host_layout::layer_first})
    for (const auto heads : {1u, 2u}) {
      SCOPED_TRACE(to_string(layout) + std::string{", heads "} + std::to_string(heads));
      const auto objects = small_objects(layout, element_type::bf16, heads);
      const auto codec = serde::fp8_object::make(objects);
      ASSERT_TRUE(codec);
      const auto owners = locate(objects);
      ASSERT_EQ(codec->original_bytes(), owners.size());
      // Each head of each layer and part has one magnitude of its own, a power of two.
      const auto exponent_of = [](const located& x) {
        return static_cast<int>(x.part == kv_part::value) * 40 + static_cast<int>(x.layer) * 20
               + static_cast<int>(x.head) * 10 - 30;
      };
      auto object = page_bytes(owners.size());
      for (auto i = size_t{0}; i < object.size(); i += 2) {
        const auto bits
          = serde::narrow(element_type::bf16, std::ldexp(1.0F, exponent_of(owners[i])));
        std::memcpy(object.data() + i, &bits, 2);
      }
      auto encoded = page_bytes(codec->fp8_bytes());
      codec->quantise(object, encoded);
      auto position = size_t{0};
      for (const auto part : {kv_part::key, kv_part::value})
        for (auto layer = 0u; layer < 2; ++layer)
          for (auto head = 0u; head < heads; ++head)
            EXPECT_EQ(std::to_integer<int>(encoded[position++]),
                      127 - 8 + exponent_of({part, layer, head}));
      EXPECT_EQ(encoded.size(), position + object.size() / 2);
      auto back = page_bytes(object.size());
      auto values = std::make_unique<serde::dequantiser>(element_type::bf16);
      ASSERT_TRUE(codec->dequantise(encoded, back, *values));
      EXPECT_EQ(back, object); // Powers of two lose nothing.
    }
}

TEST(KvObjectTest, KeepsTheIndexKeysOfNsa) {
  for (const auto layout : {host_layout::page_head, host_layout::page_first,
                            host_layout::page_first_direct, host_layout::layer_first}) {
    const auto objects = serde::kv_object_shape{
      {attention_kind::nsa, 2, 1, 4, 0, 2, 3, 5}, layout, 1, element_type::fp16};
    const auto codec = serde::fp8_object::make(objects);
    ASSERT_TRUE(codec);
    EXPECT_EQ(codec->fp8_bytes(), 2 + 2 * 3 * (4 + 5u));
    const auto owners = locate(objects);
    auto object = bytes_of(5, owners.size());
    for (auto i = size_t{0}; i < object.size();)
      if (owners[i].part == kv_part::latent) {
        const auto one = serde::narrow(element_type::fp16, 1.0F);
        std::memcpy(object.data() + i, &one, 2);
        i += 2;
      } else {
        ++i;
      }
    auto encoded = page_bytes(codec->fp8_bytes());
    codec->quantise(object, encoded);
    auto back = page_bytes(object.size());
    auto values = std::make_unique<serde::dequantiser>(element_type::fp16);
    ASSERT_TRUE(codec->dequantise(encoded, back, *values));
    EXPECT_EQ(back, object);
  }
}

TEST(KvObjectTest, RefusesAShapeThatDoesNotFit) {
  auto objects = small_objects();
  objects.shape.element_bytes = 4;
  EXPECT_EQ(code_of(serde::fp8_object::make(objects)), ec::invalid_argument);
  objects = small_objects();
  objects.shape.element_bytes = 1;
  EXPECT_EQ(code_of(serde::fp8_object::make(objects)), ec::invalid_argument);
  for (const auto heads : {0u, 3u, 4u})
    EXPECT_EQ(code_of(serde::fp8_object::make(
                small_objects(host_layout::page_head, element_type::bf16, heads))),
              ec::invalid_argument);
}

TEST(KvObjectTest, AScaleThatIsNoneIsCorrupt) {
  const auto codec = serde::fp8_object::make(small_objects());
  auto encoded = page_bytes(codec->fp8_bytes());
  encoded[3] = std::byte{serde::not_a_scale};
  auto back = page_bytes(codec->original_bytes());
  auto values = std::make_unique<serde::dequantiser>(element_type::bf16);
  EXPECT_EQ(code_of(codec->dequantise(encoded, back, *values)), ec::corrupt_page);
}

} // namespace
} // namespace hicache::test
