#pragma once

#include "base/check.hpp"
#include "cache/radix/prefix_key.hpp"
#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

/// Keys as SGLang's radix tree has them, compared by equal_pages.
namespace hicache::test {

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

inline prefix_key prefix_key::page_aligned(uint32_t page_size) const {
  HICACHE_CHECK(page_size > 0);
  const auto whole = units() / page_size * page_size;
  return {ns, tokens, whole == 0 ? 0 : whole + (bigram ? 1 : 0), bigram};
}

inline std::string name_of(const cache_namespace& ns) {
  return "(\"" + ns.extra_key + "\", \"" + ns.salt + "\")";
}

/// Units that two prefixes share, in whole pages.
/// @returns invalid_argument if their namespaces or views differ: such keys are not comparable,
/// which differs from sharing nothing.
/// @relates prefix_key
inline result<uint64_t> common_prefix(const prefix_key& a, const prefix_key& b,
                                      uint32_t page_size) {
  HICACHE_CHECK(page_size > 0);
  if (a.ns != b.ns)
    return fail(ec::invalid_argument, "keys of the namespaces " + name_of(a.ns) + " and "
                                        + name_of(b.ns) + " cannot be compared");
  if (a.bigram != b.bigram)
    return fail(ec::invalid_argument, "a key of tokens cannot be compared with a key of pairs");
  const auto pages = std::min(a.units(), b.units()) / page_size;
  if (pages == 0)
    return uint64_t{0};
  return equal_pages(a.tokens->data(), b.tokens->data(), pages, page_size, a.bigram ? 1 : 0)
         * page_size;
}

} // namespace hicache::test
