#pragma once

#include "base/error.hpp"
#include "messages/interfaces.hpp"

#include <caf/actor_system.hpp>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace hicache {

/// HOST:PORT; in texts an IPv6 address stands in brackets.
struct endpoint {
  std::string host;
  uint16_t port = 0;
};

/// @returns invalid_argument with a sentence that names the text.
/// @relates endpoint
result<endpoint> parse_endpoint(const std::string& text);

/// @relates endpoint
std::string to_string(const endpoint& where);

/// This process's connection to the index. Any thread; connecting blocks the caller.
class index_link {
public:
  /// @param system Must outlive the link and have networking loaded.
  index_link(caf::actor_system& system, endpoint where)
    : system_(system), where_(std::move(where)) {}

  /// Connects, again and again with growing pauses, for up to `patience`.
  /// @returns peer_unreachable with a sentence that names the address.
  result<void> connect(std::chrono::nanoseconds patience);

  /// The index as last seen; null if it was reported lost and did not come back. Then tries to
  /// connect again, at most once a second.
  index_actor get();

  /// Says that a request to `index` failed, so that the next get() connects anew.
  void lost(const index_actor& index);

private:
  /// One attempt.
  result<index_actor> attempt();

  caf::actor_system& system_;
  endpoint where_;
  std::mutex mutex_;
  index_actor index_;
  std::chrono::steady_clock::time_point retry_at_{};
};

} // namespace hicache
