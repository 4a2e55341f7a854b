#pragma once

#include "hicache/caf_error.hpp"
#include "messages/interfaces.hpp"

#include <caf/actor_system.hpp>
#include <caf/duration.hpp>
#include <caf/scoped_actor.hpp>

#include <vector>

namespace hicache {

/// Adds to `total` what actors of this process counted. Blocks for their answers.
/// @param timeout For all of them together, since they are asked at once.
/// @param actors Those that are null are left out.
/// @returns why the last one that did not answer has not; what the others answered is in `total`
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
