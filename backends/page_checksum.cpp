#include "backends/page_checksum.hpp"

#include "base/check.hpp"

#if __has_include(<xxh_x86dispatch.h>) && defined(__x86_64__)
// Chooses the widest registers that the processor has.
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <algorithm>
#include <array>
#include <cstring>
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

/// What is copied before it is hashed: stays in the first cache.
constexpr size_t copied_bytes = size_t{8} << 10;
constexpr size_t line_bytes = 64;

/// XXH3-64 of bytes that come one piece after the other.
class running_checksum {
public:
  running_checksum() : state_(XXH3_createState()) {
    HICACHE_CHECK(state_ != nullptr && XXH3_64bits_reset(state_.get()) == XXH_OK);
  }

  void add(const std::byte* bytes, size_t count) {
    HICACHE_CHECK(count == 0 || XXH3_64bits_update(state_.get(), bytes, count) == XXH_OK);
  }

  uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

private:
  std::unique_ptr<XXH3_state_t, free_state> state_;
};

template <class Byte>
uint64_t checksum(std::span<const std::span<Byte>> parts) {
  if (parts.size() == 1)
    return XXH3_64bits(parts[0].data(), parts[0].size());
  auto sum = running_checksum{};
  std::array<std::byte, block_bytes> block; // Only what was filled is read.
  auto filled = size_t{0};
  for (const auto& part : parts) {
    const auto is_short = part.size() < short_part_bytes;
    if (!is_short || filled + part.size() > block.size()) {
      sum.add(block.data(), filled);
      filled = 0;
    }
    if (is_short)
      std::copy(part.begin(), part.end(), block.data() + filled);
    else
      sum.add(part.data(), part.size());
    filled += is_short ? part.size() : 0;
  }
  sum.add(block.data(), filled);
  return sum.value();
}

/// Asks for memory that is wanted next.
void fetch_ahead(const std::byte* from, std::byte* to, size_t count) {
  for (auto i = size_t{0}; i < count; i += line_bytes) {
    __builtin_prefetch(from + i);
    __builtin_prefetch(to + i, 1);
  }
}

} // namespace

uint64_t page_checksum(std::span<const std::span<const std::byte>> parts) {
  return checksum(parts);
}

uint64_t page_checksum(std::span<const std::span<std::byte>> parts) {
  return checksum(parts);
}

uint64_t copy_object(std::span<const std::byte> object,
                     std::span<const std::span<std::byte>> parts) {
  auto sum = running_checksum{};
  const auto* hashed = object.data();
  const auto* from = object.data();
  for (const auto& part : parts)
    for (auto to = part; !to.empty();) {
      const auto count = std::min(to.size(), copied_bytes - static_cast<size_t>(from - hashed));
      std::memcpy(to.data(), from, count);
      from += count;
      to = to.subspan(count);
      fetch_ahead(from, to.data(), std::min(to.size(), copied_bytes));
      if (static_cast<size_t>(from - hashed) == copied_bytes) {
        sum.add(hashed, copied_bytes);
        hashed = from;
      }
    }
  HICACHE_CHECK(from == object.data() + object.size());
  sum.add(hashed, static_cast<size_t>(from - hashed));
  return sum.value();
}

} // namespace hicache
