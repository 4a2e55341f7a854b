#pragma once

#include "cache/prefix/cache_event.hpp"
#include "hicache/error.hpp"
#include "hicache/policies.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hicache {

/// @returns invalid_argument with the expected names
result<event_format> parse_event_format(std::string_view name);

/// Encodes one message of an engine's publisher for routers, in MessagePack: an array of the time,
/// the list of events, and the data-parallel rank, which is 0. Events are maps:
///
///     {"type": "BlockStored", "block_hashes", "parent_block_hash": id or nil, "token_ids",
///      "block_size", "lora_id": nil, "medium"}, with sglang "cache_salt" and "lora_name" if the
///      namespace has them; with vllm "lora_name", "extra_keys" if it has one (of each page: the
///      adapter's key; of a prompt's first page the salt), "group_idx": 0 and
///      "kv_cache_spec_kind": "full_attention"
///     {"type": "BlockRemoved", "block_hashes", "medium"}
///     {"type": "AllBlocksCleared"}
///
/// The medium of L1 is "GPU". With bigrams, a token is a pair of adjacent tokens. An event beyond
/// the routers' limits (limits::router_event_pages, router_event_tokens) becomes several, each the
/// parent of the next.
/// @param seconds Since 1970.
/// @pre page_size > 0
std::string event_message(event_format format, double seconds, std::span<const cache_event> events,
                          uint32_t page_size);

} // namespace hicache
