#pragma once

#include "backends/cluster/index_link.hpp"
#include "base/spare_pool.hpp"
#include "hicache/clock.hpp"

#include <caf/actor_addr.hpp>
#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>

#include <map>
#include <mutex>
#include <span>
#include <vector>

namespace hicache {

/// The index's answer for some keys.
struct lookup_answer {
  /// The replicas of each key, on disk too, in order; none if the page is unknown.
  placements where;
  /// Positions of keys that no keeper answered.
  std::vector<size_t> unanswered;
};

/// Queries the index for the owners of pages: each key's first keeper, or the second one if the
/// first is unreachable, exceeds limits::lookup_hedge, or does not know the page yet. Any thread.
class index_lookup {
public:
  /// @param system, index, clock Must outlive this.
  index_lookup(caf::actor_system& system, index_link& index, const clock_source& clock);

  /// Blocks until the keepers have answered, or the deadline.
  lookup_answer locate(std::span<const page_key> keys, time_point deadline);

  /// Blocks until the index knows another replica in memory of one of these pages, or the deadline.
  /// Waits at one shard only, as pages that are in demand together get their replicas together.
  /// @param known The replicas of each page that the caller knows.
  /// @returns whether there are more
  bool await_more(std::span<const page_key> keys, std::span<const replica_list> known,
                  time_point deadline);

private:
  /// Positions of the keys to query, by shard.
  using shard_lists = std::vector<std::vector<size_t>>;

  struct outcome {
    /// Positions of keys that were not answered.
    std::vector<size_t> failed;
    /// Positions of keys unknown to a shard that lacks reports of members.
    std::vector<size_t> doubtful;
  };

  /// Queries all shards at once.
  /// @param hedged Shards to wait for at most limits::lookup_hedge.
  outcome ask(const index_view& view, std::span<const page_key> keys, const shard_lists& lists,
              const std::vector<bool>& hedged, time_point deadline, placements& where);

  bool is_slow(const index_actor& shard);

  /// @param granted How long the shard had to answer.
  void failed(const index_actor& shard, const caf::error& why, caf::timespan granted);

  caf::actor_system& system_;
  index_link& index_;
  const clock_source& clock_;
  /// Actors that send requests on behalf of a thread. Kept, as the end of an actor wakes CAF's
  /// clock thread, a large part of a lookup.
  spare_pool<caf::scoped_actor> askers_;
  std::mutex mutex_; // Guards what follows.
  /// Slow shards, and until when the other keepers are queried first.
  std::map<caf::actor_addr, time_point> slow_;
};

} // namespace hicache
