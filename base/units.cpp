#include "base/units.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace hicache {

namespace {

struct unit {
  std::string_view name;
  double factor;
};

constexpr std::array<unit, 20> byte_units = {{
  {"", 1},
  {"B", 1},
  {"k", 1e3},
  {"kB", 1e3},
  {"K", 1e3},
  {"KB", 1e3},
  {"Ki", 1024},
  {"KiB", 1024},
  {"M", 1e6},
  {"MB", 1e6},
  {"Mi", 1048576},
  {"MiB", 1048576},
  {"G", 1e9},
  {"GB", 1e9},
  {"Gi", 1073741824},
  {"GiB", 1073741824},
  {"T", 1e12},
  {"TB", 1e12},
  {"Ti", 1099511627776},
  {"TiB", 1099511627776},
}};

constexpr std::array<unit, 6> time_units = {{
  {"ns", 1},
  {"us", 1e3},
  {"ms", 1e6},
  {"s", 1e9},
  {"min", 60e9},
  {"h", 3600e9},
}};

/// Splits "12.5MiB" into number and unit; the product must be a non-negative number below 2^63.
template <size_t N>
result<double> parse(std::string_view text, const std::array<unit, N>& units,
                     const char* expected) {
  auto number = 0.0;
  const auto* end = text.data() + text.size();
  const auto [rest, status] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  const auto suffix = std::string_view{rest, static_cast<size_t>(end - rest)};
  if (status == std::errc{})
    for (const auto& candidate : units)
      if (candidate.name == suffix && number >= 0 && number * candidate.factor < 0x1p63)
        return number * candidate.factor;
  return fail(ec::invalid_argument, "'" + std::string{text} + "' is not " + expected);
}

} // namespace

result<uint64_t> parse_bytes(std::string_view text) {
  return parse(text, byte_units, "a size such as 4096, 64MiB or 2GB").map([](double x) {
    return static_cast<uint64_t>(std::llround(x));
  });
}

result<duration> parse_duration(std::string_view text) {
  return parse(text, time_units, "a time such as 250ms or 2s").map([](double x) {
    return duration{std::llround(x)};
  });
}

std::string format_bytes(uint64_t bytes) {
  static constexpr std::array names = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  auto i = size_t{0};
  for (; value >= 1024 && i + 1 < names.size(); ++i)
    value /= 1024;
  auto buffer = std::array<char, 32>{};
  std::snprintf(buffer.data(), buffer.size(), i == 0 ? "%.0f %s" : "%.1f %s", value, names[i]);
  return buffer.data();
}

} // namespace hicache
