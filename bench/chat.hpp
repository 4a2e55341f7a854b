#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <vector>

namespace hicache::bench {

/// One turn of a conversation.
struct chat_turn {
  uint32_t session = 0;
  /// What the engine asks the cache for: the conversation so far and the new question.
  token_buffer asked;
  /// What it enters afterwards: the same and the answer.
  token_buffer told;
  /// Tokens that the cache had of this conversation before the turn, if it keeps everything and all
  /// sessions take their turn at the same time.
  uint64_t known = 0;
};

/// The workload "chat": 128 sessions of 10 turns that begin with one of four prompts of 2048 tokens
/// and grow by a question and an answer of 256 tokens each a turn. Every turn has buffers of its
/// own, as an engine's requests do. Immutable.
class chat {
public:
  static constexpr uint32_t sessions = 128;
  static constexpr uint32_t turns = 10;
  static constexpr uint32_t prompts = 4;
  static constexpr uint64_t prompt_tokens = 2048;
  static constexpr uint64_t part_tokens = 256;

  /// The same for the whole program.
  static const chat& instance();

  /// All sessions' first turns, then their second turns, and so on.
  const std::vector<chat_turn>& all() const noexcept { return all_; }

  /// A session's whole conversation, in one buffer.
  const std::vector<token_id>& conversation(uint32_t session) const noexcept {
    return conversations_[session];
  }

  /// Sum over the lengths of what is told.
  uint64_t told_tokens() const noexcept { return told_tokens_; }

  /// Sum over the tokens that a turn adds to what the cache has.
  uint64_t new_tokens() const noexcept { return new_tokens_; }

private:
  chat();

  std::vector<chat_turn> all_;
  std::vector<std::vector<token_id>> conversations_;
  uint64_t told_tokens_ = 0;
  uint64_t new_tokens_ = 0;
};

} // namespace hicache::bench
