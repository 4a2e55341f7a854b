#pragma once

#include <cstdint>
#include <random>

namespace hicache {

/// A number of the operating system's random source, which tells processes apart.
inline uint64_t random_number() {
  auto source = std::random_device{};
  return (uint64_t{source()} << 32) | source();
}

} // namespace hicache
