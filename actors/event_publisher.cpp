#include "actors/event_publisher.hpp"

#include "base/check.hpp"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

namespace hicache {

// -- request handling ---------------------------------------------------------

caf::result<atom::ok> event_publisher_state::publish(const cache_events_ptr& events) {
  // Wall-clock time, since routers on other machines read it.
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto message = event_message(options.format, std::chrono::duration<double>(now).count(),
                                     events->list(), options.page_size);
  const auto sent = socket->publish(options.topic, events->number, message);
  if (replay)
    replay->keep(options.topic, events->number, message);
  if (!sent && !std::exchange(is_failing, true))
    spdlog::error("{}", sent.error().detail);
  return atom::ok_v;
}

// -- actor --------------------------------------------------------------------

event_publisher_actor::behavior_type
event_publisher(event_publisher_actor::stateful_pointer<event_publisher_state> self,
                event_publisher_options options, std::unique_ptr<event_socket> socket,
                std::unique_ptr<event_replay> replay) {
  HICACHE_CHECK(socket != nullptr && options.page_size > 0);
  self->state.options = std::move(options);
  self->state.socket = std::move(socket);
  self->state.replay = std::move(replay);
  // An exit message overtakes others: quit only after publishing those received before it.
  self->set_exit_handler([self](const caf::exit_msg&) { self->send(self, atom::done_v); });
  return {
    [self](atom::events, const cache_events_ptr& events) { return self->state.publish(events); },
    [self](atom::done) { self->quit(); },
  };
}

} // namespace hicache
