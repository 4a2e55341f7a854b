#pragma once

#include <cstdint>

namespace hicache {

/// Spreads two words over one. Sums of such words make digests that can be kept up to date by
/// adding and subtracting.
constexpr uint64_t mix(uint64_t a, uint64_t b) noexcept {
  auto x = a * 0x9e3779b97f4a7c15 + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

} // namespace hicache
