#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <vector>

namespace hicache::bench {

/// One turn of a conversation.
struct chat_turn {
  uint32_t session = 0;
  /// Tokens of the request: the conversation so far and the new question.
  token_buffer asked;
  /// Tokens inserted after the request: the same plus the answer.
  token_buffer told;
  /// Conversation tokens cached before the turn, without evictions and with sessions in lockstep.
  uint64_t known = 0;
};

/// Workload "chat": 128 sessions of 10 turns. Each starts with one of four prompts of 2048 tokens
/// and grows by a question and an answer of 256 tokens each per turn. Every turn has its own
/// buffers, like an engine's requests. Immutable.
class chat {
public:
  static constexpr uint32_t sessions = 128;
  static constexpr uint32_t turns = 10;
  static constexpr uint32_t prompts = 4;
  static constexpr uint64_t prompt_tokens = 2048;
  static constexpr uint64_t part_tokens = 256;

  /// The workload shared by the whole program.
  static const chat& instance();

  /// The first turns of all sessions, then the second turns, and so on.
  const std::vector<chat_turn>& all() const noexcept { return all_; }

  /// The whole conversation of a session, in one buffer.
  const std::vector<token_id>& conversation(uint32_t session) const noexcept {
    return conversations_[session];
  }

  /// Total length of the inserted tokens.
  uint64_t told_tokens() const noexcept { return told_tokens_; }

  /// Total number of tokens that the turns add to the cache.
  uint64_t new_tokens() const noexcept { return new_tokens_; }

private:
  chat();

  std::vector<chat_turn> all_;
  std::vector<std::vector<token_id>> conversations_;
  uint64_t told_tokens_ = 0;
  uint64_t new_tokens_ = 0;
};

} // namespace hicache::bench
