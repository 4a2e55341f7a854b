#pragma once

#include "hicache/clock.hpp"
#include "messages/interfaces.hpp"

#include <caf/actor_system.hpp>

#include <span>
#include <vector>

namespace hicache {

/// Lists all members that a shard knows, requesting them in parts. Blocks until `deadline` at most.
/// @returns the error of the shard, or of its connection
result<std::vector<member_info>> list_members(caf::actor_system& system, const index_actor& shard,
                                              const clock_source& clock, time_point deadline);

/// Lists the members with these ids, as far as they exist.
result<std::vector<member_info>> list_members(caf::actor_system& system, const index_actor& shard,
                                              std::span<const uint64_t> ids,
                                              const clock_source& clock, time_point deadline);

/// The state of a shard with all of its members.
result<index_status> ask_status(caf::actor_system& system, const index_actor& shard,
                                const clock_source& clock, time_point deadline);

} // namespace hicache
