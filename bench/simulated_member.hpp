#pragma once

#include "cache/store/copy_plan.hpp"
#include "cache/store/mount_progress.hpp"
#include "cache/store/repair_queue.hpp"
#include "hicache/clock.hpp"
#include "messages/index_protocol.hpp"
#include "messages/shard_map.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace hicache::bench {

/// A page of the cluster: its writer and its number there. It is the last word of the page's key.
using page_id = uint64_t;

constexpr page_id id_of(uint32_t writer, uint64_t number) noexcept {
  return uint64_t{writer} << 40 | number;
}

constexpr uint32_t writer_of(page_id id) noexcept {
  return static_cast<uint32_t>(id >> 40);
}

constexpr uint64_t number_of(page_id id) noexcept {
  return id & ((uint64_t{1} << 40) - 1);
}

page_id id_of(const page_key& key) noexcept;

/// Size of every page's object.
inline constexpr auto object_bytes = uint32_t{1} << 20;

/// The pages of a member, by formula: it writes pages 0, 1, 2, …, keeps the latest `pages`, and
/// page q lies in slot q % pages. So a page costs two bytes of memory: the shards that keep it.
class member_pages {
public:
  /// @pre pages > 0
  member_pages(uint64_t seed, uint32_t number, uint64_t pages);

  uint64_t first() const noexcept { return first_; }

  uint64_t last() const noexcept { return last_; }

  uint64_t slots() const noexcept { return keepers_of_slot_.size(); }

  page_key key(uint64_t page) const noexcept;

  bool holds(uint64_t page) const noexcept { return page >= first_ && page < last_; }

  /// The page as announced by the member, held or not.
  announced_page announced(uint64_t page) const noexcept;

  /// First and second keeper of a held page.
  const std::array<uint8_t, 2>& keepers(uint64_t page) const noexcept {
    return keepers_of_slot_[page % slots()];
  }

  /// Evicts the `count` oldest pages. @pre that many are held
  void evict(uint64_t count) noexcept { first_ += count; }

  /// Writes the next page. @pre a slot is free
  void write(const shard_set& shards);

  /// Recomputes the keepers of every page after a change of shards.
  void reshard(const shard_set& shards);

  /// At most `most` held pages kept by a shard, from slot `next` on; advances `next`.
  std::vector<page_id> pages_of(uint8_t shard, uint64_t& next, size_t most) const;

private:
  /// The page in a slot; not held if >= last_.
  uint64_t page_in(uint64_t slot) const noexcept;

  uint64_t salt_ = 0;
  uint32_t number_ = 0;
  uint64_t first_ = 0;
  uint64_t last_ = 0;
  std::vector<std::array<uint8_t, 2>> keepers_of_slot_;
};

/// Connection of a member's segment and reader to a shard.
struct simulated_link {
  /// Process of the shard; 0 if not connected.
  uint32_t life = 0;
  /// Number of connections so far.
  uint32_t number = 0;
};

/// A member's mount at one shard.
struct simulated_mount {
  /// Connection of the mount; 0 if not mounted yet.
  uint32_t link = 0;
  mount_progress progress;
};

/// A list of members, queried in parts.
struct simulated_listing {
  bool is_open = false;
  /// Number of shards that were unreachable or failed.
  uint32_t tried = 0;
  std::vector<member_info> members;
};

/// A reader's routes (backends/cluster/page_reader.cpp) to the members that lookups returned.
struct simulated_routes {
  /// By member number: has a route; was returned by lookups since the routes were last refreshed.
  std::vector<bool> known;
  std::vector<bool> offered;
  /// Ids of the members to query next.
  std::set<uint64_t> wanted;
  /// Next time at which the known routes are refreshed.
  time_point looked_after;
  /// Outstanding query: required members, all queried ids, start of the current part, number of
  /// shards tried, and results.
  bool is_asking = false;
  std::set<uint64_t> needed;
  std::vector<uint64_t> ids;
  size_t begin = 0;
  uint32_t tried = 0;
  bool has_answer = false;
  std::set<uint64_t> found;
};

/// Repair of a member's lost replicas (actors/spreader.cpp).
struct simulated_spread {
  bool is_running = false;
  /// Pages taken from the queue, those still held, and those that lacked replicas afterwards.
  std::vector<page_key> taken;
  std::vector<page_key> pages;
  std::vector<page_key> lacking;
  simulated_listing listing;
  size_t begin = 0;
  std::vector<wanted_copies> batch;
  /// Outstanding requests of the batch to shards or members.
  size_t open = 0;
  /// Positions requested in this round, by member id.
  std::map<uint64_t, std::vector<size_t>> asked;
  /// Bytes copied by the batch.
  uint64_t bytes = 0;
};

enum class member_fate : uint8_t { alive, cut_off, dead };

/// A process with a segment and a reader.
struct simulated_member {
  explicit simulated_member(member_pages held) : pages(std::move(held)) {}

  member_info info;
  member_pages pages;
  /// Replicas of other members' pages, in slots behind its own.
  std::vector<page_id> copies;
  member_fate fate = member_fate::alive;
  time_point next_beat;
  /// Shards known to the segment, and to the reader; the segment catches up at its next tick.
  std::vector<simulated_mount> mounts;
  uint32_t reader_shards = 0;
  bool is_asking_map = false;
  /// By shard.
  std::vector<simulated_link> links;
  simulated_routes routes;
  /// List of all members, for placing replicas.
  simulated_listing listing;
  repair_queue losses;
  simulated_spread spread;
  /// Bytes read from it for repairs, and bytes by which it exceeds repair_policy::bytes_per_second.
  uint64_t repair_bytes = 0;
  double bytes_ahead = 0;
  time_point last_repair;
};

} // namespace hicache::bench
