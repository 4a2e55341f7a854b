#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>

namespace hicache {

/// Byte literals: `64_MiB`.
namespace literals {

constexpr uint64_t operator""_KiB(unsigned long long x) {
  return uint64_t{x} << 10;
}

constexpr uint64_t operator""_MiB(unsigned long long x) {
  return uint64_t{x} << 20;
}

constexpr uint64_t operator""_GiB(unsigned long long x) {
  return uint64_t{x} << 30;
}

} // namespace literals

/// Parses a size: digits with an optional fraction, then nothing (bytes), k/M/G/T (powers of 1000)
/// or Ki/Mi/Gi/Ti (powers of 1024), then an optional B: `4096`, `64MiB`, `2GB`, `1.5G`.
/// @returns bytes, or invalid_argument with a message that quotes the text
result<uint64_t> parse_bytes(std::string_view text);

/// Parses a time: digits with an optional fraction, then ns, us, ms, s, min or h: `250ms`, `2s`.
result<duration> parse_duration(std::string_view text);

/// "1.5 GiB".
std::string format_bytes(uint64_t bytes);

} // namespace hicache
