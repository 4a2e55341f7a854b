#pragma once

#include <caf/actor_system.hpp>

namespace hicache {

/// CAF's networking with a guard in front of it, which closes the connections of peers that CAF
/// would let crash this process or fill its memory: it looks at each header before CAF makes room
/// for what it announces, at each message before CAF builds what it names, and at the time since a
/// peer was heard. The bounds are in base/limits.hpp. A line in the log says who was refused and
/// why; with TLS also what OpenSSL found wrong.
///
/// What is left to a peer that gets through is what any process of the cluster may do.
/// @returns the module, for actor_system_config::module_factories, which takes it over
caf::actor_system::module* make_guarded_middleman(caf::actor_system& system);

} // namespace hicache
