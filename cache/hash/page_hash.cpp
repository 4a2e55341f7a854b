#include "cache/hash/page_hash.hpp"

#include "base/check.hpp"
#include "cache/hash/sha256.hpp"

#include <endian.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace hicache {

namespace {

static_assert(std::endian::native == std::endian::little,
              "tokens are hashed as they lie in memory, and the scheme says little endian");

sha256& hasher() {
  thread_local auto instance = sha256{};
  return instance;
}

page_key hash_with(sha256& hash, std::span<const token_id> tokens, const page_key* prior) {
  if (prior != nullptr)
    hash.add(prior->bytes.data(), prior->bytes.size());
  return hash.add(tokens.data(), tokens.size_bytes()).finish();
}

} // namespace

page_key hash_page(std::span<const token_id> tokens, const page_key* prior) {
  return hash_with(hasher(), tokens, prior);
}

std::optional<page_key> namespace_seed(const cache_namespace& ns) {
  if (ns.extra_key.empty() && ns.salt.empty())
    return std::nullopt;
  // SGLang's encoding: a domain name, then for each part a presence byte and, if present, its
  // length and text.
  auto& hash = hasher();
  hash.add("sglang-cache-namespace-v1");
  for (const auto* part : {&ns.extra_key, &ns.salt}) {
    const auto presence = static_cast<uint8_t>(part->empty() ? 0 : 1);
    hash.add(&presence, 1);
    if (presence != 0)
      hash.add_framed(*part);
  }
  return hash.finish();
}

std::optional<page_key> event_seed(const cache_namespace& ns) {
  if (ns.salt.empty() || !ns.extra_key.empty())
    return namespace_seed(ns);
  using namespace std::literals;
  return hasher().add("sglang-cache-salt-v1\0"sv).add(ns.salt).finish();
}

uint64_t tenant_of(std::string_view salt) noexcept {
  return salt.empty() ? 0 : XXH3_64bits(salt.data(), salt.size()) | 1;
}

std::vector<page_key> hash_pages(std::span<const token_id> tokens, uint32_t page_size,
                                 const page_key* prior, uint32_t overlap) {
  HICACHE_CHECK(page_size > 0 && overlap <= 1);
  const auto units = tokens.size() - std::min<size_t>(tokens.size(), overlap);
  auto keys = std::vector<page_key>(units / page_size);
  auto& hash = hasher();
  auto pairs = std::vector<token_id>(overlap == 0 ? 0 : size_t{2} * page_size);
  for (auto i = size_t{0}; i < keys.size(); ++i) {
    auto page = tokens.subspan(i * page_size, page_size + overlap);
    if (overlap != 0) {
      for (auto k = size_t{0}; k < page_size; ++k) {
        pairs[2 * k] = page[k];
        pairs[2 * k + 1] = page[k + 1];
      }
      page = pairs;
    }
    keys[i] = hash_with(hash, page, prior);
    prior = &keys[i];
  }
  return keys;
}

page_key object_mask(std::string_view fingerprint, std::string_view group) {
  return hasher().add("hicache-object-v2").add_framed(fingerprint).add_framed(group).finish();
}

page_key object_key(const page_key& page, const page_key& mask) noexcept {
  auto name = page;
  for (auto i = size_t{0}; i < name.bytes.size(); ++i)
    name.bytes[i] ^= mask.bytes[i];
  return name;
}

uint32_t writer_of(const page_key& page, uint32_t ranks) {
  HICACHE_CHECK(ranks > 0);
  return static_cast<uint32_t>(first_word(page) % ranks);
}

uint64_t fingerprint_of(std::string_view text) {
  return be64toh(first_word(hasher().add(text).finish()));
}

} // namespace hicache
