#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace hicache {

/// Tokens per hash id of a trace (the block size of the Mooncake traces).
inline constexpr uint64_t trace_block_tokens = 512;

/// One request of a workload, without its tokens.
struct replay_request {
  /// Arrival, milliseconds from the start.
  double arrival_ms = 0;
  uint64_t input_length = 0;
  uint64_t output_length = 0;
  /// Ids of the prompt's blocks of 512 tokens; the last is truncated.
  std::vector<uint64_t> blocks;
  /// Line of the trace, from 1, for messages.
  uint64_t line = 0;
  /// Its conversation, or 0; and whether this is the last turn.
  session_id session = 0;
  bool ends_session = false;
};

/// Reads a trace in the format of the Mooncake paper, at most `limit` requests (0: all).
/// @returns invalid_argument with file, line number and what was expected
result<std::vector<replay_request>> read_trace(const std::string& path, uint64_t limit);

/// Multi-turn conversations: `clients` clients take turns, `rounds` each; every prompt extends the
/// client's previous one by `turn_tokens`. The first half of the first turn is the same for all
/// clients, like a system prompt.
struct multi_turn_workload {
  uint64_t clients = 8;
  uint64_t rounds = 8;
  uint64_t turn_tokens = 1024;
};

std::vector<replay_request> make_multi_turn(const multi_turn_workload& workload);

/// Tokens of a prompt; token i of block b is a function of both, so equal blocks are equal.
token_buffer prompt_tokens(const replay_request& request);

/// Prompt and output, as cached with --cache-output. Output tokens are a function of the request's
/// position in the workload.
token_buffer prompt_and_output_tokens(const replay_request& request, uint64_t position);

} // namespace hicache
