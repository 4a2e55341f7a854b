#include "bench/index_world.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "messages/page_header.hpp"
#include "messages/shard_map.hpp"

#include <algorithm>
#include <numeric>

namespace hicache::bench {

namespace {

using namespace std::chrono_literals;

/// From the eviction of pages to the publication of those that take their place.
constexpr auto write_time = duration{1ms};

/// Pauses of a link that looks for a shard (backends/index_link.cpp).
constexpr auto link_pause_min = duration{50ms};
constexpr auto link_pause_max = duration{1s};

/// Of heartbeats, of a shard's look at its members, and of directories that tell each other.
constexpr auto tick_pause = duration{member_ttl / 4};

constexpr auto batch = uint64_t{limits::storage_batch_pages};

duration every(double per_second) {
  return std::chrono::duration_cast<duration>(std::chrono::duration<double>{1 / per_second});
}

} // namespace

index_world::index_world(uint32_t members, uint64_t pages_each, uint32_t shards, uint64_t seed,
                         const world_load& load)
  : load_(load), random_(seed) {
  HICACHE_CHECK(members > 0 && shards > 0 && shards < limits::index_shards);
  HICACHE_CHECK(pages_each > 2 * batch && load.writes_per_s > 0 && load.lookups_per_s > 0);
  for (auto number = 0U; number < shards; ++number) {
    shards_.emplace_back().shards_known = shards;
    at(now_ + tick_pause, event_kind::poll, number);
  }
  for (auto m = uint32_t{0}; m < members; ++m) {
    auto& made = members_.emplace_back(member_pages{seed, m, pages_each});
    made.info.member = m + uint64_t{1};
    made.info.host = "host-" + std::to_string(m / 8);
    made.info.memory_name = "hicache-" + std::to_string(m);
    made.info.page_address = "10.0.0.1:" + std::to_string(20'000 + m % 40'000);
    made.info.capacity_bytes = slot_bytes_for(uint64_t{1} << 20) * pages_each;
    made.reader_shards = shards;
    made.links.assign(shards, 1);
    made.mounts.resize(shards);
    at(now_ + random_up_to(tick_pause), event_kind::tick, m);
    at(now_ + random_up_to(every(load.writes_per_s)), event_kind::write, m);
    at(now_ + random_up_to(every(load.lookups_per_s)), event_kind::ask, m);
  }
  unsettled_ = uint64_t{members} * shards;
}

shard_set index_world::first_shards(uint32_t count) {
  auto set = shard_set{};
  set.numbers.resize(count);
  std::iota(set.numbers.begin(), set.numbers.end(), 0U);
  set.processes = set.numbers;
  return set;
}

void index_world::fill() {
  const auto shards = first_shards(shard_count());
  for (auto& who : members_) {
    if (stopped && stopped())
      return;
    for (auto i = uint64_t{0}; i < who.pages.slots(); ++i)
      who.pages.write(shards);
  }
}

// -- time ---------------------------------------------------------------------

bool index_world::run(duration time, const std::function<bool()>& done) {
  const auto end = now_ + time;
  for (auto turn = uint64_t{0}; !events_.empty() && events_.top().at <= end; ++turn) {
    if (turn % 1024 == 0 && stopped && stopped())
      return false;
    const auto next = events_.top();
    events_.pop();
    now_ = next.at;
    happen(next);
    if (done && done())
      return true;
  }
  now_ = end;
  return false;
}

void index_world::at(time_point when, event_kind kind, uint32_t a, uint32_t b) {
  events_.push({when, ++order_, kind, a, b});
}

void index_world::happen(const event& x) {
  switch (x.kind) {
    case event_kind::tick:
      return tick(x.a);
    case event_kind::write:
      return write(x.a);
    case event_kind::written:
      return written(x.a);
    case event_kind::ask:
      return ask(x.a);
    case event_kind::link:
      return link(x.a, x.b);
    case event_kind::map: {
      auto& who = members_[x.a];
      who.is_asking_map = false;
      who.reader_shards = shard_count();
      for (auto s = static_cast<uint32_t>(who.links.size()); s < who.reader_shards; ++s) {
        who.links.push_back(0);
        link(x.a, s);
      }
      return;
    }
    case event_kind::arrive:
      return arrive(x.a);
    case event_kind::answer:
      return answer(x.a);
    case event_kind::fail:
      return fail(x.a);
    case event_kind::poll:
      return poll(x.a);
    case event_kind::reap:
      return reap(x.a);
    case event_kind::gone:
      return member_gone(x.a, x.b);
    case event_kind::start: {
      auto& shard = shards_[x.a];
      shard.is_up = true;
      shard.last_loss = now_;
      ++shard.life;
      return;
    }
    case event_kind::learn:
      shards_[x.a].shards_known = shard_count();
      return;
  }
}

duration index_world::random_up_to(duration most) {
  return duration{static_cast<int64_t>(random_() % static_cast<uint64_t>(most.count() + 1))};
}

// -- what happens to it -------------------------------------------------------

void index_world::set_loaded(bool loaded) {
  is_loaded_ = loaded;
}

void index_world::restart_shard(uint32_t s, duration down) {
  auto& shard = shards_[s];
  shard.is_up = false;
  shard.is_reaping = false;
  shard.suspended = 0;
  shard.table = {};
  for (auto m = uint32_t{0}; m < members_.size(); ++m)
    if (members_[m].fate == member_fate::alive)
      lose_link(m, s);
  at(now_ + down, event_kind::start, s);
}

void index_world::add_shard() {
  const auto number = shard_count();
  HICACHE_CHECK(number < limits::index_shards);
  auto& made = shards_.emplace_back();
  made.shards_known = shard_count();
  made.last_loss = now_;
  at(now_ + tick_pause, event_kind::poll, number);
  // The one that it joins hears of it at once, the others when it tells them.
  for (auto s = uint32_t{0}; s < number; ++s)
    at(now_ + (s == 0 ? hop : random_up_to(tick_pause)), event_kind::learn, s);
  for (auto& who : members_)
    unsettled_ += who.fate == member_fate::dead ? 0 : 1;
}

void index_world::kill_member(uint32_t m, bool closes_connections) {
  auto& who = members_[m];
  HICACHE_CHECK(who.fate == member_fate::alive);
  who.fate = member_fate::dead;
  for (auto s = uint32_t{0}; s < shard_count(); ++s) {
    const auto is_settled_here
      = s < who.mounts.size() && who.mounts[s].life != 0 && !who.mounts[s].is_reporting;
    unsettled_ -= is_settled_here ? 0 : 1;
    if (closes_connections)
      at(now_ + hop, event_kind::gone, s, m);
  }
}

void index_world::cut_off(uint32_t first, uint32_t count) {
  for (auto m = first; m < first + count; ++m)
    if (members_[m].fate == member_fate::alive)
      members_[m].fate = member_fate::cut_off;
}

void index_world::heal() {
  for (auto& who : members_)
    if (who.fate == member_fate::cut_off)
      who.fate = member_fate::alive;
}

bool index_world::is_quiet() const {
  return pending_ == 0 && std::ranges::none_of(shards_, [](const simulated_shard& x) {
           return x.is_reaping || x.suspended > 0;
         });
}

// -- members ------------------------------------------------------------------

void index_world::tick(uint32_t m) {
  auto& who = members_[m];
  if (who.fate == member_fate::dead)
    return;
  at(now_ + tick_pause, event_kind::tick, m);
  look_at_index(m);
  for (auto s = uint32_t{0}; s < who.mounts.size(); ++s)
    if (who.mounts[s].life != 0 && !who.mounts[s].is_reporting)
      send(m, s, message_kind::beat);
}

void index_world::look_at_index(uint32_t m) {
  auto& who = members_[m];
  if (who.mounts.size() != who.reader_shards)
    reshard(m);
  for (auto s = uint32_t{0}; s < who.mounts.size(); ++s)
    if (who.links[s] != 0 && who.links[s] != who.mounts[s].life)
      mount(m, s);
}

void index_world::reshard(uint32_t m) {
  auto& who = members_[m];
  const auto before = who.pages;
  who.mounts.resize(who.reader_shards);
  who.pages.reshard(first_shards(who.reader_shards));
  auto lost = std::vector<std::vector<uint64_t>>(who.reader_shards);
  auto gained = lost;
  for (auto page = before.first(); page < before.last(); ++page) {
    const auto& was = before.keepers(page);
    const auto& is = who.pages.keepers(page);
    for (auto role = size_t{0}; role < is.size(); ++role) {
      if (is[role] != was[role])
        gained[is[role]].push_back(page);
      if (std::ranges::find(is, was[role]) == is.end())
        lost[was[role]].push_back(page);
    }
  }
  for (auto s = uint32_t{0}; s < who.reader_shards; ++s) {
    tell(m, s, std::move(gained[s]));
    for (auto first = lost[s].begin(); first != lost[s].end();) {
      const auto count = std::min<ptrdiff_t>(limits::index_batch_keys, lost[s].end() - first);
      send(m, s, message_kind::withdraw, {first, first + count});
      first += count;
    }
  }
}

void index_world::tell(uint32_t m, uint32_t s, std::vector<uint64_t> pages) {
  auto& here = members_[m].mounts[s];
  if (here.is_reporting) {
    here.held_back.insert(here.held_back.end(), pages.begin(), pages.end());
    return;
  }
  for (auto first = pages.begin(); here.life != 0 && first != pages.end();) {
    const auto count = std::min<ptrdiff_t>(limits::index_batch_keys, pages.end() - first);
    send(m, s, message_kind::publish, {first, first + count});
    first += count;
  }
}

void index_world::mount(uint32_t m, uint32_t s) {
  auto& who = members_[m];
  auto& here = who.mounts[s];
  if (here.life != 0 && !here.is_reporting)
    ++unsettled_;
  here = {who.links[s], ++who.info.epoch, true, 0, {}};
  send(m, s, message_kind::mount);
}

void index_world::report(uint32_t m, uint32_t s) {
  auto& who = members_[m];
  auto& here = who.mounts[s];
  auto pages
    = who.pages.pages_of(static_cast<uint8_t>(s), here.next_slot, limits::index_batch_keys);
  if (!pages.empty()) {
    send(m, s, message_kind::report, std::move(pages));
    return;
  }
  here.is_reporting = false;
  --unsettled_;
  last_settled_ = now_;
  std::erase_if(here.held_back, [&](uint64_t page) { return !who.pages.holds(page); });
  tell(m, s, std::exchange(here.held_back, {}));
  send(m, s, message_kind::beat);
}

std::vector<std::vector<uint64_t>> index_world::by_shard(uint32_t m, uint64_t first,
                                                         uint64_t count) const {
  const auto& who = members_[m];
  auto lists = std::vector<std::vector<uint64_t>>(who.mounts.size());
  for (auto page = first; page < first + count; ++page)
    for (const auto keeper : who.pages.keepers(page))
      lists[keeper].push_back(page);
  return lists;
}

void index_world::write(uint32_t m) {
  auto& who = members_[m];
  if (who.fate == member_fate::dead)
    return;
  at(now_ + every(load_.writes_per_s), event_kind::write, m);
  if (!is_loaded_)
    return;
  auto lists = by_shard(m, who.pages.first(), batch);
  who.pages.evict(batch);
  for (auto s = uint32_t{0}; s < lists.size(); ++s)
    if (!lists[s].empty() && who.mounts[s].life != 0)
      send(m, s, message_kind::withdraw, std::move(lists[s]));
  at(now_ + write_time, event_kind::written, m);
  ++pending_;
}

void index_world::written(uint32_t m) {
  --pending_;
  auto& who = members_[m];
  if (who.fate == member_fate::dead)
    return;
  const auto first = who.pages.last();
  const auto shards = first_shards(static_cast<uint32_t>(who.mounts.size()));
  for (auto i = uint64_t{0}; i < batch; ++i)
    who.pages.write(shards);
  auto lists = by_shard(m, first, batch);
  for (auto s = uint32_t{0}; s < lists.size(); ++s)
    tell(m, s, std::move(lists[s]));
}

void index_world::ask(uint32_t m) {
  const auto& who = members_[m];
  if (who.fate == member_fate::dead)
    return;
  at(now_ + every(load_.lookups_per_s), event_kind::ask, m);
  const auto owner = static_cast<uint32_t>(random_() % members_.size());
  const auto& pages = members_[owner].pages;
  // Neither pages that go while the question is under way, nor such that have just come.
  const auto margin = std::min(8 * batch, pages.slots() / 4);
  const auto room = pages.slots() - 2 * margin - batch;
  const auto first = pages.first() + margin + random_() % (room + 1);
  if (!is_loaded_ || who.fate == member_fate::cut_off)
    return;
  const auto known = first_shards(who.reader_shards);
  auto lists = std::vector<std::vector<uint64_t>>(who.reader_shards);
  auto out_of_reach = size_t{0};
  for (auto page = first; page < first + batch; ++page) {
    const auto keepers = known.keepers_of(pages.announced(page).key);
    if (who.links[keepers.first] != 0)
      lists[keepers.first].push_back(page);
    else if (who.links[keepers.second] != 0)
      lists[keepers.second].push_back(page);
    else
      ++out_of_reach;
  }
  seen_.keys += batch;
  count_misses(owner, out_of_reach);
  for (auto s = uint32_t{0}; s < lists.size(); ++s)
    if (!lists[s].empty()) {
      send(m, s, message_kind::locate, std::move(lists[s]));
      messages_[last_sent_].owner = owner;
    }
}

void index_world::ask_other(const message& x, const std::vector<uint64_t>& pages) {
  const auto& who = members_[x.member];
  if (x.is_second_look)
    return count_misses(x.owner, pages.size());
  const auto known = first_shards(who.reader_shards);
  auto lists = std::vector<std::vector<uint64_t>>(who.reader_shards);
  for (const auto page : pages) {
    const auto keepers = known.keepers_of(members_[x.owner].pages.announced(page).key);
    lists[keepers.first == x.shard ? keepers.second : keepers.first].push_back(page);
  }
  for (auto s = uint32_t{0}; s < lists.size(); ++s)
    if (who.links[s] == 0) {
      count_misses(x.owner, lists[s].size());
    } else if (!lists[s].empty()) {
      seen_.asked_twice += lists[s].size();
      send(x.member, s, message_kind::locate, std::move(lists[s]));
      messages_[last_sent_].owner = x.owner;
      messages_[last_sent_].is_second_look = true;
    }
}

void index_world::count_misses(uint32_t owner, size_t count) {
  seen_.misses += members_[owner].fate == member_fate::alive ? count : 0;
}

void index_world::link(uint32_t m, uint32_t s) {
  auto& who = members_[m];
  if (who.fate == member_fate::dead || who.links[s] != 0)
    return;
  if (who.fate == member_fate::cut_off || !shards_[s].is_up)
    at(now_ + link_pause_max, event_kind::link, m, s);
  else
    who.links[s] = shards_[s].life;
}

void index_world::lose_link(uint32_t m, uint32_t s) {
  auto& who = members_[m];
  if (std::exchange(who.links[s], 0) != 0)
    at(now_ + link_pause_min + random_up_to(link_pause_max - link_pause_min), event_kind::link, m,
       s);
}

void index_world::lose_mount(uint32_t m, uint32_t s) {
  auto& here = members_[m].mounts[s];
  if (here.life != 0 && !here.is_reporting)
    ++unsettled_;
  here = {};
}

void index_world::heard(uint32_t m, uint64_t shards_known) {
  auto& who = members_[m];
  if (shards_known <= who.reader_shards || who.is_asking_map)
    return;
  who.is_asking_map = true;
  at(now_ + link_pause_min + 2 * hop, event_kind::map, m);
}

// -- shards -------------------------------------------------------------------

void index_world::poll(uint32_t s) {
  at(now_ + tick_pause, event_kind::poll, s);
  auto& shard = shards_[s];
  if (!shard.is_up)
    return;
  const auto begin = shard.begin(now_);
  for (const auto member : shard.table.silent(begin, member_ttl))
    if (shard.table.drop(member))
      last_dropped_ = last_reaped_ = shard.last_loss = begin;
    else
      --shard.suspended;
  shard.occupy(now_, cost::message + reap_some(s));
}

void index_world::member_gone(uint32_t s, uint32_t m) {
  auto& shard = shards_[s];
  if (!shard.is_up)
    return;
  const auto begin = shard.begin(now_);
  if (shard.table.suspend(members_[m].info.member)) {
    last_dropped_ = last_reaped_ = shard.last_loss = begin;
    ++shard.suspended;
  }
  shard.occupy(now_, cost::message + reap_some(s));
}

duration index_world::reap_some(uint32_t s) {
  auto& shard = shards_[s];
  if (shard.is_reaping)
    return {};
  if (!shard.table.reap(limits::index_reap))
    return {};
  shard.is_reaping = true;
  const auto time = limits::index_reap * cost::reaped_replica;
  at(shard.begin(now_) + time + limits::index_reap_pause, event_kind::reap, s);
  return time;
}

void index_world::reap(uint32_t s) {
  auto& shard = shards_[s];
  if (!shard.is_up)
    return;
  shard.is_reaping = false;
  last_reaped_ = shard.occupy(now_, cost::message + reap_some(s));
}

} // namespace hicache::bench
