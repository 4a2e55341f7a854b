#pragma once

#include "backends/cluster/index_link.hpp"
#include "hicache/clock.hpp"

#include <caf/actor_addr.hpp>
#include <caf/actor_system.hpp>
#include <caf/scoped_actor.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace hicache {

/// What the index says of keys.
struct lookup_answer {
  /// For each key, in order, its replicas; none if the page is unknown.
  placements where;
  /// Positions of keys of which no keeper said anything.
  std::vector<size_t> unanswered;
};

/// Asks the shards of the index who has pages: for each key its first keeper, or the second one if
/// the first cannot be reached, does not answer within limits::lookup_hedge, or does not know the
/// page yet. Any thread.
class index_lookup {
public:
  /// @param system, index, clock Must outlive this.
  index_lookup(caf::actor_system& system, index_link& index, const clock_source& clock);

  /// Blocks until the keepers have answered, or the deadline.
  lookup_answer locate(std::span<const page_key> keys, time_point deadline);

private:
  using asker_ptr = std::unique_ptr<caf::scoped_actor>;

  /// Positions of the keys that each shard is asked for.
  using shard_lists = std::vector<std::vector<size_t>>;

  /// What came of asking shards.
  struct outcome {
    /// Positions of keys that were not answered.
    std::vector<size_t> failed;
    /// Of keys that are unknown to a shard that members have not told everything.
    std::vector<size_t> doubtful;
  };

  /// Asks all shards at once.
  /// @param hedged Shards that are not waited for longer than limits::lookup_hedge.
  outcome ask(const index_view& view, std::span<const page_key> keys, const shard_lists& lists,
              const std::vector<bool>& hedged, time_point deadline, placements& where);

  /// Who asks on behalf of a thread.
  asker_ptr take_asker();

  bool is_slow(const index_actor& shard);

  /// @param granted What the shard had to answer.
  void failed(const index_actor& shard, const caf::error& why, caf::timespan granted);

  caf::actor_system& system_;
  index_link& index_;
  const clock_source& clock_;
  std::mutex mutex_; // Guards what follows.
  /// Shards that let somebody wait, and until when the other keepers are asked first.
  std::map<caf::actor_addr, time_point> slow_;
  /// Those that nobody uses. They are kept because an actor that ends wakes the thread of CAF's
  /// clock, which takes a good part of the time of a look-up.
  std::vector<asker_ptr> idle_;
};

} // namespace hicache
