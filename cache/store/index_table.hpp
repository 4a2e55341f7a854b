#pragma once

#include "hicache/clock.hpp"
#include "hicache/error.hpp"
#include "messages/index_protocol.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hicache {

/// A member within one index_table; small and dense. Reused after the member was dropped.
using member_handle = uint32_t;

/// One copy of a page.
struct page_replica {
  member_handle member = 0;
  uint64_t offset = 0;
  uint32_t generation = 0;
  uint32_t length = 0;

  friend bool operator==(const page_replica&, const page_replica&) = default;
};

/// Answer to locate: the replicas of key i, in the order in which they were announced, are of(i).
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
  /// What it announced under the epoch that it resumes is known still.
  bool is_resumed = false;

  friend bool operator==(const mounted_member&, const mounted_member&) = default;
};

struct member_status {
  member_info member;
  /// Without those that the table keeps as the second keeper.
  uint64_t replicas = 0;
  uint64_t bytes = 0;
  time_point last_heard;
  /// As it said last.
  member_counters counters;
};

/// Members in order of their ids.
struct member_part {
  std::vector<member_status> members;
  /// There are members with higher ids.
  bool has_more = false;
};

/// A page whose copy went with a member that is gone.
struct lost_copy {
  /// The member that shall know: of those that have the page still the one that ranks highest for
  /// it, so that all who keep track of the page tell the same one.
  uint64_t holder = 0;
  page_key key;

  friend bool operator==(const lost_copy&, const lost_copy&) = default;
};

struct index_counters {
  /// Without those that are suspended.
  uint64_t members = 0;
  /// Those that only members had that are gone are counted until they are reaped.
  uint64_t keys = 0;
  /// Of members that are mounted and not suspended.
  uint64_t replicas = 0;
  /// Bytes of all replicas.
  uint64_t bytes = 0;
  /// Of these, what the table keeps as the second keeper: a key that was announced so.
  uint64_t second_keys = 0;
  uint64_t second_replicas = 0;
  uint64_t second_bytes = 0;
  /// Announcements that were not taken, or gave way later, because the key has
  /// limits::replicas_per_key replicas that rank higher; since the beginning.
  uint64_t refused = 0;
};

/// One shard of the index: which members hold which page. Soft state, rebuilt from what members
/// announce. Pure: time comes as an argument, and equal calls give equal answers. Not thread-safe.
///
/// What a member says under another epoch than the one it is mounted with is ignored, and the call
/// answers false, on which the member should mount again. Nothing scans: each call costs what it
/// adds, changes, removes or returns. A member that goes costs nothing at once, however much it
/// had: its replicas are not offered any more, and `reap` removes them bit by bit.
class index_table {
public:
  index_table();

  index_table(index_table&&) noexcept;

  index_table& operator=(index_table&&) noexcept;

  ~index_table();

  /// Enters a member, heard of at `now`. Under a newer epoch it loses all that it announced under
  /// the old one, unless it resumes that; under the same epoch it keeps its pages and its
  /// description is renewed.
  /// @returns limit_reached beyond limits::index_members; invalid_argument for an older epoch than
  /// the one mounted
  result<mounted_member> mount(const member_info& member, time_point now);

  /// Enters what a member holds; what it announced before under the same key is replaced. A key
  /// keeps the limits::replicas_per_key replicas whose members rank highest for it (rendezvous
  /// hashing), so that both keepers of a key keep the same ones, whatever they hear first.
  /// @param is_second The table is the second keeper of these pages.
  /// @returns the pages that were refused; nothing if the member is not mounted under this epoch
  std::optional<std::vector<page_key>> publish(uint64_t member, uint64_t epoch,
                                               std::span<const announced_page> pages,
                                               bool is_second = false);

  /// Removes what a member no longer holds; unknown keys do not matter.
  /// @returns false if the member is not mounted under this epoch
  bool withdraw(uint64_t member, uint64_t epoch, std::span<const page_key> keys);

  /// Offers none of a member's replicas, and ignores what it says, until it mounts again.
  /// @returns false if it is not mounted
  bool suspend(uint64_t member);

  /// Removes a member; none of its replicas is offered any more.
  /// @returns false if none was: it is not mounted, or suspended
  bool drop(uint64_t member);

  /// Frees what up to `most` replicas of members that are gone occupy.
  /// @returns whether there are more
  bool expire_replicas(size_t most);

  /// Up to `most` pages of a member that were taken, gave way to members that rank higher, and were
  /// not taken again; each once.
  std::vector<page_key> take_displaced(uint64_t member, size_t most);

  /// The copies that were reaped since the last call, of pages that somebody else has still; not
  /// those that their member has announced again.
  std::vector<lost_copy> take_lost();

  /// The replicas of each key; none for one that is not known.
  located_pages locate(std::span<const page_key> keys) const;

  /// Notes that the member is alive.
  /// @returns false if the member is not mounted under this epoch
  bool hear(uint64_t member, uint64_t epoch, time_point now);

  /// The same, with what it counted, and whether it takes no more pages.
  bool heartbeat(uint64_t member, uint64_t epoch, time_point now,
                 const member_counters& counters = {}, bool is_closed = false);

  /// The ids of members not heard of for more than `ttl`, longest silent first, suspended ones
  /// included.
  std::vector<uint64_t> silent(time_point now, duration ttl) const;

  /// Whether members are mounted from which no heartbeat came yet: they may have pages that they
  /// did not tell.
  bool is_partial() const noexcept;

  /// The member behind a handle of `mount` or `locate`; null if it was dropped. Valid until the
  /// next call that changes the table.
  const member_info* find(member_handle handle) const noexcept;

  /// The member of this id, unless it is suspended.
  std::optional<member_status> member(uint64_t id) const;

  /// Members that are not suspended, in order of their ids, from `from` on, at most `most`.
  std::vector<member_status> members(uint64_t from, size_t most) const;

  /// The same as a message asks for it: 0 asks for all.
  member_part part(uint64_t from, uint32_t most) const;

  /// The members that a query names, or a part of all, but for suspended ones.
  member_list list(const member_query& query) const;

  index_counters counters() const noexcept;

  /// Bytes that the keys and replicas occupy, slack included; at 100 000 keys and more at most 96
  /// for each key with one replica.
  uint64_t memory_bytes() const noexcept;

private:
  struct state;

  std::unique_ptr<state> state_;
};

} // namespace hicache
