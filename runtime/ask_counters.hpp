#pragma once

#include "hicache/caf_error.hpp"
#include "messages/interfaces.hpp"

#include <caf/actor_system.hpp>
#include <caf/duration.hpp>
#include <caf/scoped_actor.hpp>

#include <vector>

namespace hicache {

/// Adds the counters of actors of this process to `total`. Blocks for their answers.
/// @param timeout Shared by all requests, which are sent at once.
/// @param actors Null handles are skipped.
/// @returns the last error; `total` includes the actors that answered
template <class... Handles>
result<void> ask_counters(caf::actor_system& system, const caf::duration& timeout,
                          rank_counters& total, const Handles&... actors) {
  auto self = caf::scoped_actor{system};
  const auto ask
    = [&](const auto& actor) { return self->request(actor, timeout, atom::counters_v); };
  auto asked = std::vector<decltype(ask(tree_actor{}))>{};
  const auto ask_if = [&](const auto& actor) {
    if (actor)
      asked.push_back(ask(actor));
  };
  (ask_if(actors), ...);
  auto outcome = result<void>{};
  for (auto& answer : asked)
    answer.receive([&](const rank_counters& x) { total += x; },
                   [&](const caf::error& err) { outcome = tl::unexpected{from_caf(err)}; });
  return outcome;
}

} // namespace hicache
