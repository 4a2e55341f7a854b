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

/// A page of the cluster: the member that wrote it, and its number there. It is the last word of
/// the page's key.
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

/// Bytes of every page's object.
inline constexpr auto object_bytes = uint32_t{1} << 20;

/// The pages that a member writes, by formula: it writes pages 0, 1, 2, … for ever, keeps the
/// youngest `pages` of them, and page q lies in slot q % pages. So a member with a hundred thousand
/// pages costs two bytes each: the shards that keep the page of a slot.
class member_pages {
public:
  /// @pre pages > 0
  member_pages(uint64_t seed, uint32_t number, uint64_t pages);

  uint64_t first() const noexcept { return first_; }

  uint64_t last() const noexcept { return last_; }

  uint64_t slots() const noexcept { return keepers_of_slot_.size(); }

  page_key key(uint64_t page) const noexcept;

  bool holds(uint64_t page) const noexcept { return page >= first_ && page < last_; }

  /// As the member announces it, whether it holds the page or not.
  announced_page announced(uint64_t page) const noexcept;

  /// The first keeper and the second of a page that is held.
  const std::array<uint8_t, 2>& keepers(uint64_t page) const noexcept {
    return keepers_of_slot_[page % slots()];
  }

  /// Gives up the `count` oldest pages. @pre that many are held
  void evict(uint64_t count) noexcept { first_ += count; }

  /// Writes the next page. @pre a slot is free
  void write(const shard_set& shards);

  /// Looks for the keepers of every page again, as other shards are in use.
  void reshard(const shard_set& shards);

  /// The held pages that a shard keeps, from slot `next` on, `most` at most; moves `next` on.
  std::vector<page_id> pages_of(uint8_t shard, uint64_t& next, size_t most) const;

private:
  /// The page in a slot; not held if it is last_ or later.
  uint64_t page_in(uint64_t slot) const noexcept;

  uint64_t salt_ = 0;
  uint32_t number_ = 0;
  uint64_t first_ = 0;
  uint64_t last_ = 0;
  std::vector<std::array<uint8_t, 2>> keepers_of_slot_;
};

/// A connection to a shard, of the member's segment and of its reader.
struct simulated_link {
  /// Of the shard's process; 0 if there is no connection.
  uint32_t life = 0;
  /// Counts the connections that there were.
  uint32_t number = 0;
};

/// A member at one shard.
struct simulated_mount {
  /// The connection by which it is mounted; 0 if it was not yet.
  uint32_t link = 0;
  mount_progress progress;
};

/// A list of members, asked for in parts.
struct simulated_listing {
  bool is_open = false;
  /// Shards that are out of reach or failed.
  uint32_t tried = 0;
  std::vector<member_info> members;
};

/// What a reader knows of members (backends/cluster/page_reader.cpp): a route to each that a
/// look-up named.
struct simulated_routes {
  /// By number of the member: there is a route, and look-ups named it since it was looked for last.
  std::vector<bool> known;
  std::vector<bool> offered;
  /// Members to be asked for next, by id.
  std::set<uint64_t> wanted;
  /// When those that are known are asked for next.
  time_point looked_after;
  /// The question under way: whom it needs, all that it names, which part is asked for, how many
  /// shards were asked before, and what was found.
  bool is_asking = false;
  std::set<uint64_t> needed;
  std::vector<uint64_t> ids;
  size_t begin = 0;
  uint32_t tried = 0;
  bool has_answer = false;
  std::set<uint64_t> found;
};

/// Lost copies that a member has made anew (actors/spreader.cpp).
struct simulated_spread {
  bool is_running = false;
  /// What is tried, what of it the member has still, and what lacked copies afterwards.
  std::vector<page_key> taken;
  std::vector<page_key> pages;
  std::vector<page_key> lacking;
  simulated_listing listing;
  size_t begin = 0;
  std::vector<wanted_copies> batch;
  /// Questions to shards or members that the batch waits for.
  size_t open = 0;
  /// Of this round, by id of the member.
  std::map<uint64_t, std::vector<size_t>> asked;
  /// Bytes that the batch had copied.
  uint64_t bytes = 0;
};

enum class member_fate : uint8_t { alive, cut_off, dead };

/// A process with a segment and a reader.
struct simulated_member {
  explicit simulated_member(member_pages held) : pages(std::move(held)) {}

  member_info info;
  member_pages pages;
  /// Copies of pages of others, in places behind its own.
  std::vector<page_id> copies;
  member_fate fate = member_fate::alive;
  time_point next_beat;
  /// Shards that its segment knows, and those that its reader knows: the segment looks now and
  /// then.
  std::vector<simulated_mount> mounts;
  uint32_t reader_shards = 0;
  bool is_asking_map = false;
  /// By shard.
  std::vector<simulated_link> links;
  simulated_routes routes;
  /// All members, for who places copies.
  simulated_listing listing;
  repair_queue losses;
  simulated_spread spread;
  /// Bytes that others read from it to make copies anew, and by how many it is ahead of
  /// limits::repair_bytes_per_second.
  uint64_t repair_bytes = 0;
  double bytes_ahead = 0;
  time_point last_repair;
};

} // namespace hicache::bench
