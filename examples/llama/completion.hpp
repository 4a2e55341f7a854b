#pragma once

#include "hicache/ids.hpp"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

/// Number of a completion; given by rank 0, equal on all ranks.
using completion_id = uint64_t;

/// A prompt to complete.
struct completion_request {
  completion_id id = 0;
  std::vector<hicache::token_id> prompt;
  uint64_t max_tokens = 16;
  /// Higher ones run first, and their pages stay longer under the eviction policy `priority`.
  int32_t priority = 0;
  /// Goes on after the model's end tokens.
  bool ignores_end = false;
  /// Whose pages it may share (cache_namespace::salt).
  std::string salt;
  /// Streaming session that it is a turn of, opened by its first turn; 0: none.
  hicache::session_id session = 0;
  /// Closes the session.
  bool ends_session = false;
  /// On a decode instance: addresses of the prefill instances to ask for the prompt's KV, in order.
  std::vector<std::string> prefill{};
  /// On a prefill instance: ranks of the instance that gets the prompt's KV, and the pages that it
  /// has already. 0: the completion stays here.
  uint32_t receiver_ranks = 0;
  uint64_t receiver_pages = 0;
};

/// A message of a prefill instance for a completion that waits for KV.
struct handoff_event {
  completion_id id = 0;
  /// Number of the prefill instance in completion_request::prefill.
  uint64_t attempt = 0;
  std::string message;
};

/// Why a completion ended.
enum class finish_reason : uint8_t {
  none,
  /// The model said so.
  stop,
  /// It has max_tokens tokens, or as many as the model can.
  length,
  /// The client or the server ended it.
  aborted,
  /// See completion_output::error.
  failed,
};

/// In the order of finish_reason.
inline constexpr auto finish_names
  = std::to_array<std::string_view>({"", "stop", "length", "abort", "failed"});

/// A part of a completion: new tokens, or its end.
struct completion_output {
  completion_id id = 0;
  std::vector<hicache::token_id> tokens{};
  finish_reason finish = finish_reason::none;
  /// Tokens of the prompt whose KV came from the cache.
  uint64_t cached_tokens = 0;
  /// A sentence, if it failed.
  std::string error{};
  /// Tokens of the prompt whose KV came from a prefill instance.
  uint64_t handed_tokens = 0;
  /// On a prefill instance: a message for the decode instance.
  std::string message{};
  /// On a decode instance: the number of the prefill instance to ask now, and the pages of the
  /// prompt that it need not send.
  std::optional<uint64_t> attempt{};
  uint64_t known_pages = 0;
};

/// What rank 0 tells all ranks at the start of a turn.
struct turn_input {
  std::vector<completion_request> added{};
  std::vector<completion_id> aborted{};
  std::vector<handoff_event> handoffs{};
  bool is_last = false;
};

// As messages for peers::broadcast.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(completion_request, id, prompt, max_tokens, priority,
                                   ignores_end, salt, session, ends_session, prefill,
                                   receiver_ranks, receiver_pages)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(handoff_event, id, attempt, message)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(turn_input, added, aborted, handoffs, is_last)

} // namespace llama
