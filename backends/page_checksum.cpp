#include "backends/page_checksum.hpp"

#include "base/check.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <memory>

namespace hicache {

namespace {

struct free_state {
  void operator()(XXH3_state_t* state) const noexcept { XXH3_freeState(state); }
};

/// Shorter parts are copied together first: XXH3 takes pieces of 256 bytes at a quarter of its
/// speed.
constexpr size_t short_part_bytes = 4096;
constexpr size_t block_bytes = size_t{16} << 10;

template <class Byte>
uint64_t checksum(std::span<const std::span<Byte>> parts) {
  if (parts.size() == 1)
    return XXH3_64bits(parts[0].data(), parts[0].size());
  const auto state = std::unique_ptr<XXH3_state_t, free_state>{XXH3_createState()};
  HICACHE_CHECK(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK);
  const auto update = [&](const std::byte* bytes, size_t count) {
    HICACHE_CHECK(count == 0 || XXH3_64bits_update(state.get(), bytes, count) == XXH_OK);
  };
  std::array<std::byte, block_bytes> block; // Only what was filled is read.
  auto filled = size_t{0};
  for (const auto& part : parts) {
    const auto is_short = part.size() < short_part_bytes;
    if (!is_short || filled + part.size() > block.size()) {
      update(block.data(), filled);
      filled = 0;
    }
    if (is_short)
      std::copy(part.begin(), part.end(), block.data() + filled);
    else
      update(part.data(), part.size());
    filled += is_short ? part.size() : 0;
  }
  update(block.data(), filled);
  return XXH3_64bits_digest(state.get());
}

} // namespace

uint64_t page_checksum(std::span<const std::span<const std::byte>> parts) {
  return checksum(parts);
}

uint64_t page_checksum(std::span<const std::span<std::byte>> parts) {
  return checksum(parts);
}

} // namespace hicache
