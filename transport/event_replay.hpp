#pragma once

#include "hicache/error.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace hicache {

/// Gives messages that were published to subscribers that missed them, over ZeroMQ (ROUTER), as the
/// publishers of SGLang and vLLM do. A subscriber sends an empty frame and the number in 8 bytes,
/// big endian, of the first message that it lacks. It gets each message from there on that is still
/// kept, in five frames less its own address: empty, topic, number, message; and at the end the
/// number -1 with an empty topic and message. The last 10 000 messages are kept, of 64 MiB at most.
///
/// In clear and to anyone. Any thread; it has one of its own.
class event_replay {
public:
  virtual ~event_replay() = default;

  /// @param endpoint To be bound. A port '*' is one that the kernel picks.
  /// @returns invalid_argument with a sentence if that cannot be
  static result<std::unique_ptr<event_replay>> open(const std::string& endpoint);

  /// Where it is bound: "tcp://127.0.0.1:41234".
  virtual const std::string& endpoint() const noexcept = 0;

  /// Keeps a message that was published. Numbers rise.
  virtual void keep(std::string_view topic, uint64_t number, std::string_view message) = 0;
};

} // namespace hicache
