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
///      "block_size", "lora_id": nil, "medium"}, with vllm "lora_name": nil, too
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
