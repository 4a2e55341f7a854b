#pragma once

#include "hicache/error.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace hicache {

/// Publishes messages over ZeroMQ (PUB), unencrypted and unauthenticated. One thread at a time.
class event_socket {
public:
  virtual ~event_socket() = default;

  /// Opens a socket. As in SGLang and vLLM, it binds if the endpoint contains '*' or "::" or begins
  /// with "ipc://" or "inproc://"; else it connects to a bound subscriber. The kernel picks a port
  /// for '*'.
  /// @returns invalid_argument with a sentence if that fails
  static result<std::unique_ptr<event_socket>> open(const std::string& endpoint);

  /// The bound or connected address: "tcp://127.0.0.1:41234".
  virtual const std::string& endpoint() const noexcept = 0;

  /// Sends three frames: the topic, the number in 8 bytes, big endian, and the message. Never
  /// blocks: late subscribers, and those with limits::router_messages queued, miss the message.
  /// @returns io_failure with a sentence
  virtual result<void> publish(std::string_view topic, uint64_t number, std::string_view message)
    = 0;
};

} // namespace hicache
