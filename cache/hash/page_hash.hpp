#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace hicache {

/// Names one page: SHA-256 over the 32 bytes of `prior` (if any), then each token as 4 bytes,
/// little endian. Scheme and test vectors are SGLang's, so that both name pages alike.
/// @param prior The key of the preceding page, or the seed of the namespace, or nothing.
page_key hash_page(std::span<const token_id> tokens, const page_key* prior);

/// The start of a namespace's key chain; nothing for the base model without a salt, whose keys are
/// the plain chain. Fields are framed, so that ("bc","a") and ("c","ab") differ.
std::optional<page_key> namespace_seed(const cache_namespace& ns);

/// The start of the chain of names under which routers know a namespace's pages. For a salt alone
/// it is SGLang's, so that routers which compute names themselves find the pages. SGLang ignores
/// `extra_key`, so that an adapter's pages could be mistaken for the base model's; here they start
/// as in namespace_seed.
std::optional<page_key> event_seed(const cache_namespace& ns);

/// The tenant number of a namespace's salt; 0 without one.
uint64_t tenant_of(std::string_view salt) noexcept;

/// The keys of all whole pages of `tokens`, chained from `prior`.
/// @param overlap 1 with bigrams: a page's units are pairs of adjacent tokens, each hashed with
/// both tokens, so that a page depends on the first token of the next; else 0.
std::vector<page_key> hash_pages(std::span<const token_id> tokens, uint32_t page_size,
                                 const page_key* prior, uint32_t overlap = 0);

/// Separates the objects of one group of one model from all others: SHA-256 over both framed names.
/// @param fingerprint Everything besides the tokens that must match for pages to be interchangeable
/// (model, revision, dtype, geometry).
/// @param group Which part of the page: head_group::name ("heads 4+1").
page_key object_mask(std::string_view fingerprint, std::string_view group);

/// The name of one object of a page in L3: the XOR of the page's key and the group's mask. Both are
/// SHA-256 digests, so names collide as rarely as digests do; and it is cheap, since a prefetch
/// needs the names of thousands of pages before it can begin.
page_key object_key(const page_key& page, const page_key& mask) noexcept;

/// The rank that writes a page to L3 if all ranks hold the same bytes: the first 8 bytes of its
/// key, little endian, modulo `ranks`. Keys are hashes, so the ranks' shares are equal.
/// @pre ranks > 0
uint32_t writer_of(const page_key& page, uint32_t ranks);

/// First 8 bytes of the SHA-256 of a text, big endian: the namespace fingerprint in a page header.
uint64_t fingerprint_of(std::string_view text);

} // namespace hicache
