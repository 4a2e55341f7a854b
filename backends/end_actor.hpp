#pragma once

#include <caf/actor_system.hpp>
#include <caf/exit_reason.hpp>
#include <caf/scoped_actor.hpp>

namespace hicache {

/// Ends an actor, if there is one, and waits until it has ended. For threads that are not actors.
template <class Handle>
void end_actor(caf::actor_system& system, const Handle& actor) {
  if (!actor)
    return;
  auto self = caf::scoped_actor{system};
  self->send_exit(actor, caf::exit_reason::user_shutdown);
  self->wait_for(actor);
}

} // namespace hicache
