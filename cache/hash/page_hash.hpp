#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace hicache {

/// Names one page: SHA-256 over the 32 bytes of `prior` (if any), then each token as 4 bytes,
/// little endian. The scheme and its test vectors are SGLang's, so that pages can be named alike.
/// @param prior The key of the page before, or the seed of the namespace, or nothing.
page_key hash_page(std::span<const token_id> tokens, const page_key* prior);

/// The start of the chain for a namespace; nothing for the base model without a salt, whose keys
/// are the plain chain. Fields are framed, so that ("bc","a") and ("c","ab") differ.
std::optional<page_key> namespace_seed(const cache_namespace& ns);

/// The start of the chain of names by which routers know a namespace's pages. SGLang's for a salt
/// alone, so that routers which compute names themselves find them. SGLang leaves `extra_key` out,
/// so that an adapter's pages could be taken for the base model's; here they start as in
/// namespace_seed.
std::optional<page_key> event_seed(const cache_namespace& ns);

/// A number for the tenant that a namespace's salt stands for; 0 without one.
uint64_t tenant_of(std::string_view salt) noexcept;

/// The keys of all whole pages of `tokens`, chained from `prior`.
/// @param overlap 1 with bigrams: then a page's units are pairs of neighbours, of which each is
/// hashed with both tokens, so that a page looks at one token of the next; else 0.
std::vector<page_key> hash_pages(std::span<const token_id> tokens, uint32_t page_size,
                                 const page_key* prior, uint32_t overlap = 0);

/// What tells the objects of one group of one model from all others: SHA-256 over both names, each
/// framed.
/// @param fingerprint Everything that must match for pages to be interchangeable besides the tokens
/// (model, revision, dtype, geometry).
/// @param group Which part of the page: head_group::name ("heads 4+1").
page_key object_mask(std::string_view fingerprint, std::string_view group);

/// The name of one object of a page in L3: the exclusive or of the page's key and the group's mask.
/// Both are SHA-256 digests, so names meet as rarely as digests do, and cost next to nothing: a
/// prefetch needs them for thousands of pages before it can begin.
page_key object_key(const page_key& page, const page_key& mask) noexcept;

/// Which of the ranks writes a page to L3 where all of them hold the same bytes: the first 8 bytes
/// of its key as a number, little endian, modulo `ranks`. Keys are hashes, so every rank writes the
/// same share.
/// @pre ranks > 0
uint32_t writer_of(const page_key& page, uint32_t ranks);

/// First 8 bytes of SHA-256 over a text, big endian: what a page header stores as the namespace
/// fingerprint.
uint64_t fingerprint_of(std::string_view text);

} // namespace hicache
