#pragma once

#include "hicache/ids.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace hicache {

/// Number of equal leading tokens. Costs one memcmp, plus as much at most to find a difference.
inline uint64_t equal_tokens(const token_id* a, const token_id* b, uint64_t count) noexcept {
  // Small enough to stay in the CPU cache for the second pass.
  constexpr auto largest_block = uint64_t{4096};
  constexpr auto few = uint64_t{16};
  const auto equal = [&](uint64_t from, uint64_t size) {
    return std::memcmp(a + from, b + from, size * sizeof(token_id)) == 0;
  };
  auto done = uint64_t{0};
  auto block = std::min(count, largest_block);
  while (done < count && equal(done, block)) {
    done += block;
    block = std::min(count - done, largest_block);
  }
  // Any difference is within the block. memcmp stops at it, so halves that contain it are cheap.
  while (block > few) {
    const auto half = block / 2;
    if (equal(done, half)) {
      done += half;
      block -= half;
    } else {
      block = half;
    }
  }
  for (const auto end = done + block; done < end && a[done] == b[done];)
    ++done;
  return done;
}

/// True if the first `count` tokens of both are equal.
inline bool begin_alike(const token_buffer& a, const token_buffer& b, uint64_t count) noexcept {
  return a == b
         || (a && b && count <= a->size() && count <= b->size()
             && equal_tokens(a->data(), b->data(), count) == count);
}

/// Number of equal leading whole pages.
/// @param overlap Tokens that a page shares with the next one: 1 with bigrams, else 0. Hence
/// `pages` pages depend on pages * page_size + overlap tokens.
inline uint64_t equal_pages(const token_id* a, const token_id* b, uint64_t pages,
                            uint32_t page_size, uint32_t overlap) noexcept {
  const auto equal = equal_tokens(a, b, pages * page_size + overlap);
  return equal < overlap ? 0 : (equal - overlap) / page_size;
}

} // namespace hicache
