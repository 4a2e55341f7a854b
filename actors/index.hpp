#pragma once

#include "cache/store/index_table.hpp"
#include "hicache/clock.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>

#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

namespace hicache {

/// Fixed settings of an index shard.
struct index_options {
  /// A member that is silent for longer is forgotten.
  duration member_ttl = std::chrono::seconds{10};
  /// Must outlive the actor.
  const clock_source* clock = nullptr;
};

/// @relates index
struct index_state {
  static inline constexpr auto name = "index";

  explicit index_state(index_actor::pointer owner) : self(owner) {}

  // -- request handling -------------------------------------------------------

  caf::result<membership> mount(const member_info& member);

  membership take_heartbeat(const heartbeat& sign);

  membership publish(const published_pages& news);

  membership withdraw(const withdrawn_pages& news);

  placements locate(const key_batch& query);

  index_status status(const status_query& query) const;

  void poll();

  /// Removes a part of what members left behind, then looks at other messages before the next one.
  void expire_replicas();

  // -- internal steps ---------------------------------------------------------

  membership view(bool known) const;

  /// Whether members may have pages that this shard does not know: it began a short while ago, or
  /// lost one that may come back, or one is still reporting.
  bool is_partial() const;

  /// @returns whether it was mounted and not suspended
  bool forget(uint64_t member);

  void on_member_lost();

  void on_down(const caf::actor_addr& who);

  // -- data -------------------------------------------------------------------

  index_actor::pointer self;
  index_options options;
  index_table table;
  /// Which peer mounted which members, and the other way around: its end withdraws them at once.
  std::map<caf::actor_addr, std::set<uint64_t>> mounted_by;
  std::map<uint64_t, caf::actor_addr> peers;
  /// Copies that others lost, by the member that shall know.
  std::unordered_map<uint64_t, std::vector<page_key>> lost;
  time_point started;
  /// When it began, or lost a member last.
  time_point last_loss;
  /// A message to itself is under way that goes on with it.
  bool is_expiring = false;
  /// Of the shards that the process knows.
  uint64_t shards_digest = 0;
  uint64_t lookups = 0;
  uint64_t keys_asked = 0;
  uint64_t keys_found = 0;
  uint64_t members_lost = 0;
};

/// One shard of the L3 index: which members hold which page.
index_actor::behavior_type index(index_actor::stateful_pointer<index_state> self,
                                 index_options options);

} // namespace hicache
