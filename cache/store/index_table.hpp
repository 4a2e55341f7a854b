#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "messages/index_protocol.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace hicache {

/// Handle of a member within one index_table; small and dense. Reused after the member was dropped.
using member_handle = uint32_t;

/// One copy of a page.
struct page_replica {
  member_handle member = 0;
  uint64_t offset = 0;
  uint32_t generation = 0;
  uint32_t length = 0;

  friend bool operator==(const page_replica&, const page_replica&) = default;
};

/// Answer to locate: of(i) are the replicas of key i, in the order in which they were announced.
class located_pages {
public:
  size_t keys() const noexcept { return ends_.size(); }

  /// @pre i < keys()
  std::span<const page_replica> of(size_t i) const noexcept;

private:
  friend class index_table;

  std::vector<page_replica> replicas_;
  std::vector<size_t> ends_;
};

/// Answer to mount.
struct mounted_member {
  member_handle handle = 0;
  /// The table still knows what the member announced under the epoch that it resumes.
  bool is_resumed = false;

  friend bool operator==(const mounted_member&, const mounted_member&) = default;
};

struct member_status {
  member_info member;
  /// In memory, and on disk. Exclude those that the table keeps as second keeper.
  uint64_t replicas = 0;
  uint64_t bytes = 0;
  uint64_t disk_replicas = 0;
  uint64_t disk_bytes = 0;
  time_point last_heard;
  /// As last reported.
  member_counters counters;
};

/// Members in order of their ids.
struct member_part {
  std::vector<member_status> members;
  /// True if there are members with higher ids.
  bool has_more = false;
};

/// A page that lost a copy when a member departed.
struct lost_copy {
  /// The member to notify: the highest-ranking remaining holder of the page, so that all keepers of
  /// the page notify the same one.
  uint64_t holder = 0;
  page_key key;

  friend bool operator==(const lost_copy&, const lost_copy&) = default;
};

struct index_counters {
  /// Excludes suspended ones.
  uint64_t members = 0;
  /// Includes keys held only by departed members, until they are expired.
  uint64_t keys = 0;
  /// Of members that are mounted and not suspended.
  uint64_t replicas = 0;
  /// Bytes of all replicas.
  uint64_t bytes = 0;
  /// Subset that the table keeps as second keeper: keys announced as such.
  uint64_t second_keys = 0;
  uint64_t second_replicas = 0;
  uint64_t second_bytes = 0;
  /// Subset on disk that the table does not keep as second keeper.
  uint64_t disk_replicas = 0;
  uint64_t disk_bytes = 0;
  /// Total of announcements that were refused, or displaced later, because the key has
  /// limits::replicas_per_key replicas of higher rank.
  uint64_t refused = 0;
};

/// One shard of the index: which members hold which page. Soft state, rebuilt from the members'
/// announcements. Pure: time is an argument, and equal calls give equal answers. Not thread-safe.
///
/// A message under another epoch than the mounted one is ignored and answered with false; the
/// member should then mount again. No call scans: each costs what it adds, changes, removes or
/// returns. Dropping a member is O(1) however much it held: its replicas are no longer offered, and
/// `expire_replicas` removes them in parts.
class index_table {
public:
  index_table();

  index_table& operator=(index_table&&) noexcept;

  ~index_table();

  /// Enters a member, last heard of at `now`. A newer epoch discards all announcements of the old
  /// one, unless the member resumes it; the same epoch keeps its pages and updates its description.
  /// @returns limit_reached beyond limits::index_members; invalid_argument for an outdated epoch
  result<mounted_member> mount(const member_info& member, time_point now);

  /// Enters pages that a member holds, replacing its earlier announcement of the same key. A key
  /// keeps the limits::replicas_per_key replicas whose members rank highest for it (rendezvous
  /// hashing, those in memory before those on disk), so that both keepers keep the same ones,
  /// whatever the order of announcements.
  /// @param is_second The table is the second keeper of these pages.
  /// @param only_new Refuses pages that another member offers in memory.
  /// @returns the refused pages; nothing if the member is not mounted under this epoch
  std::optional<std::vector<page_key>> publish(uint64_t member, uint64_t epoch,
                                               std::span<const announced_page> pages,
                                               bool is_second = false, bool only_new = false);

  /// Removes pages that a member no longer holds; unknown keys are ignored.
  /// @returns false if the member is not mounted under this epoch
  bool withdraw(uint64_t member, uint64_t epoch, std::span<const page_key> keys);

  /// Stops offering a member's replicas and ignores its messages until it mounts again.
  /// @returns false if it is not mounted
  bool suspend(uint64_t member);

  /// Removes a member and stops offering its replicas.
  /// @returns false if it was not mounted, or was suspended
  bool drop(uint64_t member);

  /// Frees up to `most` replicas of departed members.
  /// @returns whether there are more
  bool expire_replicas(size_t most);

  /// Up to `most` distinct pages of a member that were accepted, then displaced by higher-ranking
  /// members, and not accepted again.
  std::vector<page_key> take_displaced(uint64_t member, size_t most);

  /// Copies expired since the last call whose pages other members still hold; excludes copies that
  /// their member has announced again. Replicas on disk do not count.
  std::vector<lost_copy> take_lost();

  /// The replicas of each key, on disk too; none for an unknown key.
  located_pages locate(std::span<const page_key> keys) const;

  /// Records that the member is alive.
  /// @returns false if the member is not mounted under this epoch
  bool hear(uint64_t member, uint64_t epoch, time_point now);

  /// The same, with the member's counters and whether it accepts no more pages.
  bool heartbeat(uint64_t member, uint64_t epoch, time_point now,
                 const member_counters& counters = {}, bool is_closed = false);

  /// Ids of members not heard of for more than `ttl`, longest silent first, suspended ones
  /// included.
  std::vector<uint64_t> silent(time_point now, duration ttl) const;

  /// Whether mounted members have not sent a heartbeat yet: they may hold unannounced pages.
  bool is_partial() const noexcept;

  /// The member of a handle; null if it was dropped. Valid until the next change of the table.
  const member_info* find(member_handle handle) const noexcept;

  /// The member of this id, unless it is suspended.
  std::optional<member_status> member(uint64_t id) const;

  /// Members that are not suspended, in order of their ids, from `from` on, at most `most`.
  std::vector<member_status> members(uint64_t from, size_t most) const;

  /// The same for a message: `most` == 0 requests all.
  member_part part(uint64_t from, uint32_t most) const;

  /// The members that a query names, or a part of all, without suspended ones.
  member_list list(const member_query& query) const;

  index_counters counters() const noexcept;

  /// Bytes occupied by keys and replicas, slack included: at most 96 per key with one replica, from
  /// 100 000 keys on.
  uint64_t memory_bytes() const noexcept;

private:
  struct state;

  std::unique_ptr<state> state_;
};

} // namespace hicache
