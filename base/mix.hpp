#pragma once

#include <cstdint>

namespace hicache {

/// Hashes two words into one. Sums of such words are digests that support addition and removal.
constexpr uint64_t mix(uint64_t a, uint64_t b) noexcept {
  auto x = a * 0x9e3779b97f4a7c15 + b;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

} // namespace hicache
