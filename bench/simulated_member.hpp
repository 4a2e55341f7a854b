#pragma once

#include "base/clock.hpp"
#include "messages/index_protocol.hpp"
#include "messages/shard_map.hpp"

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace hicache::bench {

/// The pages of a member, by formula: it writes pages 0, 1, 2, … for ever, keeps the youngest
/// `pages` of them, and page q lies in slot q % pages. So a member with a hundred thousand pages
/// costs two bytes each: the shards that keep the page of a slot.
class member_pages {
public:
  /// @pre pages > 0
  member_pages(uint64_t seed, uint32_t number, uint64_t pages);

  uint64_t first() const noexcept { return first_; }

  uint64_t last() const noexcept { return last_; }

  uint64_t slots() const noexcept { return keepers_of_slot_.size(); }

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
  std::vector<uint64_t> pages_of(uint8_t shard, uint64_t& next, size_t most) const;

  /// Adds to `firsts` and `all`, by shard, how many pages it keeps as the first, and in all.
  void count(std::vector<uint64_t>& firsts, std::vector<uint64_t>& all) const;

private:
  /// The page in a slot; not held if it is last_ or later.
  uint64_t page_in(uint64_t slot) const noexcept;

  uint64_t salt_ = 0;
  uint64_t first_ = 0;
  uint64_t last_ = 0;
  std::vector<std::array<uint8_t, 2>> keepers_of_slot_;
};

/// A member at one shard.
struct simulated_mount {
  /// Of the shard's process that it is mounted at; 0 if at none.
  uint32_t life = 0;
  uint64_t epoch = 0;
  bool is_reporting = false;
  /// Where the block report goes on.
  uint64_t next_slot = 0;
  /// Written while reporting.
  std::vector<uint64_t> held_back;
};

enum class member_fate : uint8_t { alive, cut_off, dead };

/// A process with a segment and a reader.
struct simulated_member {
  explicit simulated_member(member_pages held) : pages(std::move(held)) {}

  member_info info;
  member_pages pages;
  member_fate fate = member_fate::alive;
  /// Shards that its segment knows, and those that its reader knows: the segment looks when it
  /// sends its signs of life.
  std::vector<simulated_mount> mounts;
  uint32_t reader_shards = 0;
  bool is_asking_map = false;
  /// By shard: the life of the process that the link is connected to; 0 if to none.
  std::vector<uint32_t> links;
};

} // namespace hicache::bench
