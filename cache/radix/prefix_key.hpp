#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

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

/// Number of equal leading whole pages.
/// @param overlap Tokens that a page shares with the next one: 1 with bigrams, else 0. Hence
/// `pages` pages depend on pages * page_size + overlap tokens.
inline uint64_t equal_pages(const token_id* a, const token_id* b, uint64_t pages,
                            uint32_t page_size, uint32_t overlap) noexcept {
  const auto equal = equal_tokens(a, b, pages * page_size + overlap);
  return equal < overlap ? 0 : (equal - overlap) / page_size;
}

/// A prefix in its namespace: the first `limit` tokens of a shared buffer, as tokens or, for EAGLE
/// (speculative decoding), as pairs of adjacent tokens (n tokens are n - 1 units). A value; any
/// thread.
struct prefix_key {
  cache_namespace ns;
  token_buffer tokens;
  /// At most the size of the buffer.
  uint64_t limit = 0;
  bool bigram = false;

  std::span<const token_id> view() const noexcept {
    return tokens ? std::span{*tokens}.first(limit) : std::span<const token_id>{};
  }

  /// Length in units.
  uint64_t units() const noexcept { return bigram && limit > 0 ? limit - 1 : limit; }

  /// The same prefix, cut to whole pages of `page_size` units.
  prefix_key page_aligned(uint32_t page_size) const;
};

/// Units that two prefixes share, in whole pages.
/// @returns invalid_argument if their namespaces or views differ: such keys are not comparable,
/// which differs from sharing nothing.
/// @relates prefix_key
result<uint64_t> common_prefix(const prefix_key& a, const prefix_key& b, uint32_t page_size);

} // namespace hicache
