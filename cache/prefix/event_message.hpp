#pragma once

#include "base/error.hpp"
#include "cache/prefix/cache_event.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hicache {

/// Whose publisher's messages routers read. They differ in what L2 and a salt are called.
enum class event_format : uint8_t {
  /// SGLang 0.5.23: "CPU_PINNED", and a `cache_salt`.
  sglang,
  /// vLLM 0.32: "CPU", and a salt among the `extra_keys` of a prompt's first block. Also what
  /// Dynamo and llm-d read.
  vllm,
};

/// @returns invalid_argument with what was expected
result<event_format> parse_event_format(std::string_view name);

/// Events as routers read them: one message of an engine's publisher, in MessagePack. An array of
/// the time, the list of events, and the data-parallel rank, which is 0. Events are maps:
///
///     {"type": "BlockStored", "block_hashes", "parent_block_hash": id or nil, "token_ids",
///      "block_size", "lora_id": nil, "medium"}, with vllm "lora_name": nil, too
///     {"type": "BlockRemoved", "block_hashes", "medium"}
///     {"type": "AllBlocksCleared"}
///
/// The medium of L1 is "GPU". With bigrams, a token is a pair of neighbours. An event with more
/// pages than routers take (limits::router_event_pages, router_event_tokens) becomes several, each
/// the parent of the next.
/// @param seconds Since 1970.
/// @pre page_size > 0
std::string event_message(event_format format, double seconds, std::span<const cache_event> events,
                          uint32_t page_size);

} // namespace hicache
