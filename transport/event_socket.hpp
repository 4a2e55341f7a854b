#pragma once

#include "hicache/error.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace hicache {

/// Publishes messages over ZeroMQ (PUB), to all who subscribe. In clear and to anyone. One thread
/// at a time may call a given object.
class event_socket {
public:
  virtual ~event_socket() = default;

  /// Opens a socket. As with SGLang and vLLM, it is bound if the endpoint has a '*' or "::" or
  /// begins with "ipc://" or "inproc://", and else connects to a subscriber that is bound there. A
  /// port '*' is one that the kernel picks.
  /// @returns invalid_argument with a sentence if that cannot be
  static result<std::unique_ptr<event_socket>> open(const std::string& endpoint);

  /// Where it is bound or connected: "tcp://127.0.0.1:41234".
  virtual const std::string& endpoint() const noexcept = 0;

  /// Sends three frames: the topic, the number in 8 bytes, big endian, and the message. Never
  /// waits: who subscribed too late, or has limits::router_messages waiting, does not get it.
  /// @returns io_failure with a sentence
  virtual result<void> publish(std::string_view topic, uint64_t number, std::string_view message)
    = 0;
};

} // namespace hicache
