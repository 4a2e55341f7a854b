#include "cache/store/index_table.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "base/mix.hpp"
#include "cache/store/index_records.hpp"

#include <absl/container/btree_map.h>
#include <absl/container/btree_set.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

namespace hicache {

namespace {

/// Prefetch distance in keys: a table of millions of keys is in no cache, and the misses would be
/// waited for one after the other.
constexpr auto keys_ahead = size_t{8};

/// Replicas and their bytes: all, those kept as second keeper, and others on disk.
struct replica_totals {
  uint64_t replicas = 0;
  uint64_t bytes = 0;
  uint64_t second_replicas = 0;
  uint64_t second_bytes = 0;
  uint64_t disk_replicas = 0;
  uint64_t disk_bytes = 0;

  /// Adds `x` so many times; -1 takes it away.
  void add(const replica_totals& x, int64_t times) {
    const auto factor = static_cast<uint64_t>(times);
    replicas += factor * x.replicas;
    bytes += factor * x.bytes;
    second_replicas += factor * x.second_replicas;
    second_bytes += factor * x.second_bytes;
    disk_replicas += factor * x.disk_replicas;
    disk_bytes += factor * x.disk_bytes;
  }
};

replica_totals totals_of(const record& x) {
  const auto bytes = uint64_t{x.length};
  if (x.is_second != 0)
    return {1, bytes, 1, bytes, 0, 0};
  if (is_on_disk(x.offset))
    return {1, bytes, 0, 0, 1, bytes};
  return {1, bytes, 0, 0, 0, 0};
}

struct member_entry {
  member_info member;
  /// It mounted under this epoch without pages, and has only resumed since.
  uint64_t first_epoch = 0;
  /// Its replicas are offered. False while suspended, or departed with replicas left.
  bool is_offered = false;
  bool is_suspended = false;
  /// A member sends heartbeats once it has reported everything.
  bool has_reported = false;
  time_point last_heard;
  replica_totals totals;
  member_counters counters;
  record_index first = no_record;
  /// Its pages that were displaced by others, not yet reported to it.
  std::vector<page_key> displaced;
};

} // namespace

struct index_table::state {
  record_pool pool;
  /// The first record of each key.
  absl::flat_hash_set<record_index, key_hash, key_equal> keys{0, key_hash{{&pool}},
                                                              key_equal{{&pool}}};
  std::vector<member_entry> members;
  std::vector<member_handle> free_handles;
  /// No longer mounted, but with replicas left.
  std::deque<member_handle> departed;
  absl::btree_map<uint64_t, member_handle> handle_of;
  absl::btree_set<std::pair<time_point, member_handle>> by_silence;
  std::vector<lost_copy> lost;
  /// Of offered members.
  replica_totals totals;
  /// Keys whose first record is second.
  uint64_t second_keys = 0;
  uint64_t refused = 0;
  /// Offered members that have not reported.
  uint64_t reporting = 0;
  uint64_t suspended = 0;

  /// The member if it is mounted under this epoch, and not suspended.
  std::optional<member_handle> current(uint64_t id, uint64_t epoch) const {
    const auto at = handle_of.find(id);
    if (at == handle_of.end() || members[at->second].member.epoch != epoch
        || !members[at->second].is_offered)
      return std::nullopt;
    return at->second;
  }

  member_status describe(member_handle handle) const {
    const auto& entry = members[handle];
    const auto& all = entry.totals;
    return {entry.member,
            all.replicas - all.second_replicas - all.disk_replicas,
            all.bytes - all.second_bytes - all.disk_bytes,
            all.disk_replicas,
            all.disk_bytes,
            entry.last_heard,
            entry.counters};
  }

  void heard(member_handle handle, time_point now) {
    auto& entry = members[handle];
    if (now <= entry.last_heard)
      return;
    by_silence.erase({entry.last_heard, handle});
    entry.last_heard = now;
    by_silence.insert({now, handle});
  }

  /// Adds a record to the counters, as replica_totals::add does.
  void count(const record& x, int64_t times) {
    const auto one = totals_of(x);
    auto& entry = members[x.member];
    entry.totals.add(one, times);
    if (entry.is_offered)
      totals.add(one, times);
  }

  /// Replaces the content of a known record.
  void renew(record_index i, bool is_first_of_key, const announced_page& page, bool is_second) {
    if (is_first_of_key) {
      second_keys -= pool[i].is_second;
      second_keys += is_second ? 1 : 0;
    }
    count(pool[i], -1);
    describe(i, page, is_second);
  }

  void describe(record_index i, const announced_page& page, bool is_second) {
    auto& target = pool[i];
    target.offset = page.offset;
    target.generation = page.generation;
    target.length = page.length;
    target.is_second = is_second ? 1 : 0;
    count(target, 1);
  }

  record_index add(member_handle handle, const announced_page& page, bool is_second) {
    const auto i = pool.take();
    auto& entry = members[handle];
    pool[i] = {};
    pool[i].key = page.key;
    pool[i].member = handle & max_handle;
    pool[i].next_of_member = entry.first;
    if (entry.first != no_record)
      pool[entry.first].previous_of_member = i;
    entry.first = i;
    describe(i, page, is_second);
    return i;
  }

  /// If a key has too many replicas, those of the highest-ranking members stay, in memory before on
  /// disk.
  std::tuple<bool, uint64_t, uint64_t> rank_of(const page_key& key, member_handle handle,
                                               uint64_t offset) const {
    const auto id = members[handle].member.member;
    return {!is_on_disk(offset), mix(first_word(key), id), id};
  }

  auto rank_of(record_index i) const {
    return rank_of(pool[i].key, pool[i].member, pool[i].offset);
  }

  /// Calls `visit` for each of these, while the next keys are fetched into the caches.
  /// @param key_of The key of an item.
  template <class Item, class KeyOf, class Visit>
  void for_each(std::span<const Item> items, KeyOf key_of, Visit visit) const {
    for (auto i = size_t{0}; i < std::min(items.size(), keys_ahead); ++i)
      keys.prefetch(key_of(items[i]));
    for (auto i = size_t{0}; i < items.size(); ++i) {
      if (i + keys_ahead < items.size())
        keys.prefetch(key_of(items[i + keys_ahead]));
      visit(items[i]);
    }
  }

  /// The replica of this key and member.
  record_index find(member_handle handle, const page_key& key) const {
    const auto at = keys.find(key);
    auto i = at == keys.end() ? no_record : *at;
    while (i != no_record && pool[i].member != handle)
      i = pool[i].next_of_key;
    return i;
  }

  /// @returns false if the key has enough replicas of higher-ranking members, or, if only new pages
  /// are wanted, one offered in memory
  bool publish(member_handle handle, const announced_page& page, bool is_second, bool only_new) {
    const auto at = keys.find(page.key);
    if (at == keys.end()) {
      keys.insert(add(handle, page, is_second));
      second_keys += is_second ? 1 : 0;
      return true;
    }
    auto count = size_t{0};
    auto is_offered = false;
    auto last = no_record;
    auto lowest = no_record;
    for (auto i = *at; i != no_record; i = pool[i].next_of_key) {
      if (pool[i].member == handle) {
        renew(i, i == *at, page, is_second);
        return true;
      }
      last = i;
      if (!is_member(pool[i].member))
        continue;
      ++count;
      is_offered |= members[pool[i].member].is_offered && !is_on_disk(pool[i].offset);
      if (lowest == no_record || rank_of(i) < rank_of(lowest))
        lowest = i;
    }
    if (only_new && is_offered)
      return false;
    const auto is_full = count >= limits::replicas_per_key;
    refused += is_full ? 1 : 0;
    if (is_full && rank_of(page.key, handle, page.offset) < rank_of(lowest))
      return false;
    const auto added = add(handle, page, is_second);
    pool[last].next_of_key = added;
    if (is_full) {
      members[pool[lowest].member].displaced.push_back(page.key);
      remove(lowest);
    }
    return true;
  }

  /// Records the member to notify of the loss of this replica.
  void note_loss(record_index gone) {
    if (is_on_disk(pool[gone].offset))
      return;
    const auto& key = pool[gone].key;
    const auto owner = members[pool[gone].member].member.member;
    auto best = no_record;
    for (auto i = *keys.find(key); i != no_record; i = pool[i].next_of_key) {
      const auto& holder = members[pool[i].member];
      if (!is_member(pool[i].member))
        continue;
      if (holder.member.member == owner)
        return; // It has mounted again and still has the page.
      if (!is_on_disk(pool[i].offset) && (best == no_record || rank_of(best) < rank_of(i)))
        best = i;
    }
    if (best != no_record)
      lost.push_back({members[pool[best].member].member.member, key});
  }

  /// Unlinks a record from its key.
  void leave_key(record_index i) {
    const auto at = keys.find(pool[i].key);
    HICACHE_CHECK(at != keys.end());
    const auto next = pool[i].next_of_key;
    if (*at == i) {
      keys.erase(at);
      second_keys -= pool[i].is_second;
      if (next != no_record) {
        keys.insert(next);
        second_keys += pool[next].is_second;
      }
      return;
    }
    auto before = *at;
    while (pool[before].next_of_key != i)
      before = pool[before].next_of_key;
    pool[before].next_of_key = next;
  }

  void remove(record_index i) {
    leave_key(i);
    const auto& gone = pool[i];
    auto& entry = members[gone.member];
    if (gone.previous_of_member != no_record)
      pool[gone.previous_of_member].next_of_member = gone.next_of_member;
    else
      entry.first = gone.next_of_member;
    if (gone.next_of_member != no_record)
      pool[gone.next_of_member].previous_of_member = gone.previous_of_member;
    count(gone, -1);
    pool.give_back(i);
  }

  void drop(member_handle handle) {
    auto& entry = members[handle];
    if (entry.is_offered)
      offer(handle, false);
    suspended -= std::exchange(entry.is_suspended, false) ? 1 : 0;
    by_silence.erase({entry.last_heard, handle});
    handle_of.erase(entry.member.member);
    departed.push_back(handle);
  }

  /// Counts a member's replicas as offered, or no longer. A member that is offered again has to
  /// report changes made meanwhile.
  void offer(member_handle handle, bool offers) {
    auto& entry = members[handle];
    const auto unreported = entry.has_reported ? uint64_t{0} : uint64_t{1};
    offers ? reporting += unreported : reporting -= unreported;
    totals.add(entry.totals, offers ? 1 : -1);
    entry.is_offered = offers;
  }

  /// Whether it is mounted, suspended or not.
  bool is_member(member_handle handle) const {
    return members[handle].is_offered || members[handle].is_suspended;
  }

  /// Mounts a known member again.
  void resume(member_handle handle, const member_info& member, time_point now) {
    auto& entry = members[handle];
    if (entry.is_offered)
      offer(handle, false);
    suspended -= std::exchange(entry.is_suspended, false) ? 1 : 0;
    entry.has_reported &= entry.member.epoch == member.epoch;
    entry.member = member;
    entry.member.resumes = 0;
    offer(handle, true);
    heard(handle, now);
  }
};

std::span<const page_replica> located_pages::of(size_t i) const noexcept {
  HICACHE_CHECK(i < ends_.size());
  const auto begin = i == 0 ? 0 : ends_[i - 1];
  return std::span{replicas_}.subspan(begin, ends_[i] - begin);
}

index_table::index_table() : state_(std::make_unique<state>()) {}

index_table& index_table::operator=(index_table&&) noexcept = default;

index_table::~index_table() = default;

result<mounted_member> index_table::mount(const member_info& member, time_point now) {
  auto& s = *state_;
  if (auto at = s.handle_of.find(member.member); at != s.handle_of.end()) {
    const auto handle = at->second;
    const auto& known = s.members[handle];
    const auto epoch = known.member.epoch;
    if (member.epoch < epoch)
      return fail(ec::invalid_argument, "member " + std::to_string(member.member)
                                          + " is mounted under epoch " + std::to_string(epoch)
                                          + ", which is newer than "
                                          + std::to_string(member.epoch));
    // It may have mounted since without receiving the answer.
    const auto resumes
      = member.resumes != 0 && member.resumes >= known.first_epoch && member.resumes <= epoch;
    if (member.epoch == epoch || resumes) {
      s.resume(handle, member, now);
      return mounted_member{handle, resumes};
    }
    now = std::max(now, known.last_heard);
    s.drop(handle);
  }
  if (s.handle_of.size() >= limits::index_members)
    return fail(ec::limit_reached, "the index has " + std::to_string(limits::index_members)
                                     + " members and takes no more");
  auto handle = static_cast<member_handle>(s.members.size());
  if (s.free_handles.empty()) {
    s.members.emplace_back();
  } else {
    handle = s.free_handles.back();
    s.free_handles.pop_back();
  }
  auto& entry = s.members[handle];
  entry.member = member;
  entry.member.resumes = 0;
  entry.first_epoch = member.epoch;
  entry.last_heard = now;
  s.offer(handle, true);
  s.handle_of.emplace(member.member, handle);
  s.by_silence.insert({now, handle});
  return mounted_member{handle, false};
}

std::optional<std::vector<page_key>> index_table::publish(uint64_t member, uint64_t epoch,
                                                          std::span<const announced_page> pages,
                                                          bool is_second, bool only_new) {
  const auto handle = state_->current(member, epoch);
  if (!handle)
    return std::nullopt;
  auto refused = std::vector<page_key>{};
  const auto key_of = [](const announced_page& page) -> const page_key& { return page.key; };
  state_->for_each(pages, key_of, [&](const announced_page& page) {
    if (!state_->publish(*handle, page, is_second, only_new))
      refused.push_back(page.key);
  });
  return refused;
}

bool index_table::withdraw(uint64_t member, uint64_t epoch, std::span<const page_key> keys) {
  const auto handle = state_->current(member, epoch);
  if (!handle)
    return false;
  state_->for_each(keys, std::identity{}, [&](const page_key& key) {
    if (const auto i = state_->find(*handle, key); i != no_record)
      state_->remove(i);
  });
  return true;
}

bool index_table::suspend(uint64_t member) {
  auto& s = *state_;
  const auto at = s.handle_of.find(member);
  if (at == s.handle_of.end() || !s.members[at->second].is_offered)
    return false;
  s.offer(at->second, false);
  s.members[at->second].is_suspended = true;
  ++s.suspended;
  return true;
}

bool index_table::drop(uint64_t member) {
  const auto at = state_->handle_of.find(member);
  if (at == state_->handle_of.end())
    return false;
  const auto was_offered = state_->members[at->second].is_offered;
  state_->drop(at->second);
  return was_offered;
}

bool index_table::expire_replicas(size_t most) {
  auto& s = *state_;
  for (; !s.departed.empty(); s.departed.pop_front()) {
    const auto handle = s.departed.front();
    for (; s.members[handle].first != no_record; --most) {
      if (most == 0)
        return true;
      s.note_loss(s.members[handle].first);
      s.remove(s.members[handle].first);
    }
    s.members[handle] = {};
    s.free_handles.push_back(handle);
  }
  return false;
}

std::vector<page_key> index_table::take_displaced(uint64_t member, size_t most) {
  auto& s = *state_;
  const auto at = s.handle_of.find(member);
  if (at == s.handle_of.end())
    return {};
  auto& all = s.members[at->second].displaced;
  const auto first = all.end() - static_cast<ptrdiff_t>(std::min(all.size(), most));
  auto some = std::vector<page_key>(first, all.end());
  all.erase(first, all.end());
  std::erase_if(some, [&](const page_key& key) { return s.find(at->second, key) != no_record; });
  return some;
}

std::vector<lost_copy> index_table::take_lost() {
  return std::exchange(state_->lost, {});
}

located_pages index_table::locate(std::span<const page_key> keys) const {
  auto found = located_pages{};
  found.ends_.reserve(keys.size());
  found.replicas_.reserve(keys.size());
  const auto& pool = state_->pool;
  state_->for_each(keys, std::identity{}, [&](const page_key& key) {
    const auto at = state_->keys.find(key);
    for (auto i = at == state_->keys.end() ? no_record : *at; i != no_record;
         i = pool[i].next_of_key)
      if (state_->members[pool[i].member].is_offered)
        found.replicas_.push_back(
          {pool[i].member, pool[i].offset, pool[i].generation, pool[i].length});
    found.ends_.push_back(found.replicas_.size());
  });
  return found;
}

bool index_table::hear(uint64_t member, uint64_t epoch, time_point now) {
  const auto handle = state_->current(member, epoch);
  if (!handle)
    return false;
  state_->heard(*handle, now);
  return true;
}

bool index_table::heartbeat(uint64_t member, uint64_t epoch, time_point now,
                            const member_counters& counters, bool is_closed) {
  if (!hear(member, epoch, now))
    return false;
  auto& entry = state_->members[*state_->current(member, epoch)];
  entry.counters = counters;
  entry.member.is_closed = is_closed;
  state_->reporting -= std::exchange(entry.has_reported, true) ? 0 : 1;
  return true;
}

std::vector<uint64_t> index_table::silent(time_point now, duration ttl) const {
  auto ids = std::vector<uint64_t>{};
  for (const auto& [last_heard, handle] : state_->by_silence) {
    if (now - last_heard <= ttl)
      break;
    ids.push_back(state_->members[handle].member.member);
  }
  return ids;
}

bool index_table::is_partial() const noexcept {
  return state_->reporting > 0;
}

const member_info* index_table::find(member_handle handle) const noexcept {
  const auto& members = state_->members;
  const auto is_there = handle < members.size() && members[handle].is_offered;
  return is_there ? &members[handle].member : nullptr;
}

std::optional<member_status> index_table::member(uint64_t id) const {
  const auto at = state_->handle_of.find(id);
  if (at == state_->handle_of.end() || !state_->members[at->second].is_offered)
    return std::nullopt;
  return state_->describe(at->second);
}

std::vector<member_status> index_table::members(uint64_t from, size_t most) const {
  const auto& handles = state_->handle_of;
  auto some = std::vector<member_status>{};
  for (auto at = handles.lower_bound(from); at != handles.end() && some.size() < most; ++at)
    if (state_->members[at->second].is_offered)
      some.push_back(state_->describe(at->second));
  return some;
}

member_part index_table::part(uint64_t from, uint32_t most) const {
  const auto count = most == 0 ? limits::index_members : size_t{most};
  auto some = member_part{members(from, count + 1), false};
  some.has_more = some.members.size() > count;
  some.members.resize(std::min(some.members.size(), count));
  return some;
}

member_list index_table::list(const member_query& query) const {
  auto some = query.members.empty() ? part(query.from, query.most) : member_part{};
  for (const auto id : std::set<uint64_t>(query.members.begin(), query.members.end()))
    if (auto entry = member(id))
      some.members.push_back(*std::move(entry));
  auto answer = member_list{{}, some.has_more};
  for (auto& entry : some.members)
    answer.members.push_back(std::move(entry.member));
  return answer;
}

index_counters index_table::counters() const noexcept {
  const auto& s = *state_;
  return {s.handle_of.size() - s.suspended,
          s.keys.size(),
          s.totals.replicas,
          s.totals.bytes,
          s.second_keys,
          s.totals.second_replicas,
          s.totals.second_bytes,
          s.totals.disk_replicas,
          s.totals.disk_bytes,
          s.refused};
}

uint64_t index_table::memory_bytes() const noexcept {
  // One control byte per slot of the hash set.
  return state_->pool.memory_bytes() + state_->keys.capacity() * (sizeof(record_index) + 1);
}

} // namespace hicache
