#pragma once

#include "cache/store/index_table.hpp"
#include "cache/store/replica_waits.hpp"
#include "hicache/clock.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>
#include <caf/typed_response_promise.hpp>

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

namespace hicache {

struct index_options {
  /// A member that is silent for longer is dropped.
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

  caf::result<atom::ok> await(const awaited_pages& query);

  index_status status(const status_query& query) const;

  void poll();

  /// Removes a bounded number of dead members' replicas, then yields to other messages.
  void expire_replicas();

  // -- internal steps ---------------------------------------------------------

  /// Replies to readers that wait for another replica of these pages.
  void end_waits(std::span<const announced_page> pages);

  /// Replies to a reader whose time is over, unless it has its answer.
  void expire_wait(uint64_t number);

  membership view(bool known) const;

  /// Whether members may hold pages unknown to this shard: it started or lost a member recently, or
  /// a member is still reporting.
  bool is_partial() const;

  /// @returns whether the member was mounted and not suspended
  bool forget(uint64_t member);

  void on_member_lost();

  void on_down(const caf::actor_addr& who);

  // -- data -------------------------------------------------------------------

  index_actor::pointer self;
  index_options options;
  index_table table;
  /// Which peer mounted which members, and the reverse. When a peer goes down, the pages of its
  /// members are withdrawn at once.
  std::map<caf::actor_addr, std::set<uint64_t>> mounted_by;
  std::map<uint64_t, caf::actor_addr> peers;
  /// Replicas lost on other members, by the member to notify.
  std::unordered_map<uint64_t, std::vector<page_key>> lost;
  /// Readers that wait for another replica, and their promises by number.
  replica_waits waits;
  std::unordered_map<uint64_t, caf::typed_response_promise<atom::ok>> waiting;
  time_point started;
  /// Start time, or when a member was last lost.
  time_point last_loss;
  /// A message to itself that continues the expiry is under way.
  bool is_expiring = false;
  /// Digest of the process's shard map.
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
