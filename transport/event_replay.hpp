#pragma once

#include "hicache/error.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace hicache {

/// Replays published messages to subscribers that missed them, over ZeroMQ (ROUTER), with the
/// protocol of the publishers of SGLang and vLLM. A subscriber sends an empty frame and the number
/// of the first missing message in 8 bytes, big endian. The reply is every kept message from there
/// on, each in four frames after the subscriber's address: empty, topic, number, message. A final
/// one has number -1, empty topic and body. Keeps the last 10 000 messages, at most 64 MiB.
///
/// Unencrypted and unauthenticated. Any thread; runs its own thread.
class event_replay {
public:
  virtual ~event_replay() = default;

  /// @param endpoint Address to bind. The kernel picks a port for '*'.
  /// @returns invalid_argument with a sentence if binding fails
  static result<std::unique_ptr<event_replay>> open(const std::string& endpoint);

  /// The bound address: "tcp://127.0.0.1:41234".
  virtual const std::string& endpoint() const noexcept = 0;

  /// Keeps a published message. Numbers increase.
  virtual void keep(std::string_view topic, uint64_t number, std::string_view message) = 0;
};

} // namespace hicache
