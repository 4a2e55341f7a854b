#pragma once

#include "hicache/error.hpp"
#include "hicache/ids.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace hicache {

/// Tokens that one hash id of a trace stands for (the Mooncake traces' block size).
inline constexpr uint64_t trace_block_tokens = 512;

/// One request of a workload, before its tokens are made.
struct replay_request {
  /// Arrival, milliseconds from the start.
  double arrival_ms = 0;
  uint64_t input_length = 0;
  uint64_t output_length = 0;
  /// Names of the blocks of 512 tokens that the prompt consists of; the last is cut.
  std::vector<uint64_t> blocks;
  /// Where it comes from, for messages: the line of the trace, from 1.
  uint64_t line = 0;
  /// The conversation whose turn it is, or 0; and whether it is the last one.
  session_id session = 0;
  bool ends_session = false;
};

/// Reads a trace in the format of the Mooncake paper, at most `limit` requests (0: all).
/// @returns invalid_argument with file, line number and what was expected.
result<std::vector<replay_request>> read_trace(const std::string& path, uint64_t limit);

/// Conversations that come back: `clients` clients take turns, `rounds` each; every prompt is the
/// client's previous one and `turn_tokens` more. The first half of each client's first turn is the
/// same for all clients, as a system prompt is.
struct multi_turn_workload {
  uint64_t clients = 8;
  uint64_t rounds = 8;
  uint64_t turn_tokens = 1024;
};

std::vector<replay_request> make_multi_turn(const multi_turn_workload& workload);

/// Tokens of a prompt: token i of block b is a fixed function of b and i, so equal blocks are equal
/// tokens.
token_buffer prompt_tokens(const replay_request& request);

/// Prompt and output: what is cached with --cache-output. Output tokens are a function of the
/// request's position in the workload.
token_buffer prompt_and_output_tokens(const replay_request& request, uint64_t position);

} // namespace hicache
