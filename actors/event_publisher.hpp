#pragma once

#include "cache/prefix/event_message.hpp"
#include "hicache/events.hpp"
#include "messages/interfaces.hpp"
#include "transport/event_replay.hpp"
#include "transport/event_socket.hpp"

#include <caf/typed_event_based_actor.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace hicache {

struct event_publisher_options {
  /// Subscribers may filter by it.
  std::string topic;
  event_format format = event_format::sglang;
  /// Tokens per page of the tree.
  uint32_t page_size = 0;
};

/// @relates event_publisher
struct event_publisher_state {
  static inline constexpr auto name = "event_publisher";

  explicit event_publisher_state(event_publisher_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  caf::result<atom::ok> publish(const cache_events_ptr& events);

  // -- data -------------------------------------------------------------------

  event_publisher_actor::pointer self;
  event_publisher_options options;
  std::unique_ptr<event_socket> socket;
  std::unique_ptr<event_replay> replay;
  /// True after a send failed; logged once.
  bool is_failing = false;
};

/// Publishes the events of one tree (cache/prefix/event_message.hpp). On exit, publishes everything
/// received before.
/// @param socket Must not be null.
/// @param replay For subscribers that missed messages; may be null.
event_publisher_actor::behavior_type
event_publisher(event_publisher_actor::stateful_pointer<event_publisher_state> self,
                event_publisher_options options, std::unique_ptr<event_socket> socket,
                std::unique_ptr<event_replay> replay);

} // namespace hicache
