#include "cache/radix/prefix_key.hpp"

#include "base/check.hpp"

#include <string>

namespace hicache {

namespace {

std::string name_of(const cache_namespace& ns) {
  return "(\"" + ns.extra_key + "\", \"" + ns.salt + "\")";
}

} // namespace

prefix_key prefix_key::page_aligned(uint32_t page_size) const {
  HICACHE_CHECK(page_size > 0);
  const auto whole = units() / page_size * page_size;
  return {ns, tokens, whole == 0 ? 0 : whole + (bigram ? 1 : 0), bigram};
}

result<uint64_t> common_prefix(const prefix_key& a, const prefix_key& b, uint32_t page_size) {
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

} // namespace hicache
