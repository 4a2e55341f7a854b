#pragma once

#include "cache/cache_event.hpp"

#include <cstdint>
#include <span>
#include <string>

namespace hicache {

/// Events as routers read them: one message of SGLang's publisher, in MessagePack. An array of the
/// time, the list of events, and the data-parallel rank, which is 0:
///
///     ["BlockStored", ids, parent's id or nil, tokens, page size, nil, medium]
///     ["BlockRemoved", ids, medium]
///     ["AllBlocksCleared"]
///
/// The medium is "GPU" or "CPU_PINNED". With bigrams, a token is a pair of neighbours. A namespace
/// with a salt adds {"cache_salt": salt}. An event with more pages than routers take
/// (limits::router_event_pages, router_event_tokens) becomes several, each the parent of the next.
/// @param seconds Since 1970.
/// @pre page_size > 0
std::string event_message(double seconds, std::span<const cache_event> events, uint32_t page_size);

} // namespace hicache
