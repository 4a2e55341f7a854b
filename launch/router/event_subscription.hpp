#pragma once

#include "hicache/error.hpp"

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace hicache {

/// Called by the subscription's thread.
struct event_sink {
  /// A message, in order.
  std::function<void(std::string_view message)> apply;
  /// Messages are lost, or the publisher is another: what was applied counts no more.
  std::function<void()> lose;
};

/// Reads the events of one instance over ZeroMQ (SUB), on a thread of its own. Asks for missed
/// messages again where it can; else they are lost.
class event_subscription {
public:
  /// @param events Where the instance publishes, all topics: tcp://HOST:PORT or ipc://FILE.
  /// @param replay Where it is asked for missed messages; empty: nowhere.
  /// @returns invalid_argument with a sentence that names the endpoint
  static result<std::unique_ptr<event_subscription>>
  open(const std::string& events, const std::string& replay, event_sink sink);

  virtual ~event_subscription() = default;
};

} // namespace hicache
