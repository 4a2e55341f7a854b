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

/// One way between two processes.
constexpr auto hop = duration{100us};

/// What members grant a shard (launch/cluster_member.cpp), and readers.
constexpr auto member_patience = duration{5s};
constexpr auto reader_patience = duration{limits::storage_timeout};

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
  : load_(load), random_(seed), numbers_(shards) {
  HICACHE_CHECK(members > 0 && shards > 0 && shards < limits::index_shards);
  HICACHE_CHECK(pages_each > 2 * batch && load.writes_per_s > 0 && load.lookups_per_s > 0);
  std::iota(numbers_.begin(), numbers_.end(), 0U);
  for (const auto number : numbers_) {
    shards_.emplace_back().shards_known = shards;
    at(now_ + tick_pause, event_kind::poll, number);
  }
  for (auto m = uint32_t{0}; m < members; ++m) {
    auto& made = members_.emplace_back(
      simulated_member{{}, {seed, m, pages_each}, member_fate::alive, {}, 0, false, {}});
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

void index_world::fill() {
  for (auto& who : members_) {
    if (stopped && stopped())
      return;
    for (auto i = uint64_t{0}; i < who.pages.slots(); ++i)
      who.pages.write(numbers_);
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
      who.reader_shards = static_cast<uint32_t>(numbers_.size());
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
      ++shard.life;
      return;
    }
    case event_kind::learn:
      shards_[x.a].shards_known = numbers_.size();
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
  shard.table = {};
  for (auto m = uint32_t{0}; m < members_.size(); ++m)
    if (members_[m].fate == member_fate::alive)
      lose_link(m, s);
  at(now_ + down, event_kind::start, s);
}

void index_world::add_shard() {
  const auto number = static_cast<uint32_t>(numbers_.size());
  HICACHE_CHECK(number < limits::index_shards);
  numbers_.push_back(number);
  shards_.emplace_back().shards_known = numbers_.size();
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
  for (auto s = uint32_t{0}; s < numbers_.size(); ++s) {
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
  return pending_ == 0 && std::ranges::none_of(shards_, &simulated_shard::is_reaping);
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
  who.pages.reshard(std::span{numbers_}.first(who.reader_shards));
  auto moved = std::vector<std::vector<uint64_t>>(who.reader_shards);
  for (auto page = before.first(); page < before.last(); ++page)
    if (before.shard(page) != who.pages.shard(page))
      moved[before.shard(page)].push_back(page);
  for (auto s = uint32_t{0}; s < moved.size(); ++s)
    for (auto first = moved[s].begin(); first != moved[s].end();) {
      const auto count = std::min<ptrdiff_t>(limits::index_batch_keys, moved[s].end() - first);
      send(m, s, message_kind::withdraw, {first, first + count});
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
  if (auto late = std::exchange(here.held_back, {}); !late.empty())
    send(m, s, message_kind::publish, std::move(late));
}

std::vector<std::vector<uint64_t>> index_world::by_shard(uint32_t m, uint64_t first,
                                                         uint64_t count) const {
  const auto& who = members_[m];
  auto lists = std::vector<std::vector<uint64_t>>(who.mounts.size());
  for (auto page = first; page < first + count; ++page)
    lists[who.pages.shard(page)].push_back(page);
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
  for (auto i = uint64_t{0}; i < batch; ++i)
    who.pages.write(std::span{numbers_}.first(who.mounts.size()));
  auto lists = by_shard(m, first, batch);
  for (auto s = uint32_t{0}; s < lists.size(); ++s) {
    auto& here = who.mounts[s];
    if (lists[s].empty())
      continue;
    if (here.is_reporting)
      here.held_back.insert(here.held_back.end(), lists[s].begin(), lists[s].end());
    else if (here.life != 0)
      send(m, s, message_kind::publish, std::move(lists[s]));
  }
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
  const auto known = std::span{numbers_}.first(who.reader_shards);
  auto lists = std::vector<std::vector<uint64_t>>(known.size());
  for (auto page = first; page < first + batch; ++page)
    lists[shard_of(pages.announced(page).key, known)].push_back(page);
  seen_.keys += batch;
  for (auto s = uint32_t{0}; s < lists.size(); ++s) {
    if (lists[s].empty())
      continue;
    if (who.links[s] == 0) {
      seen_.misses += members_[owner].fate == member_fate::alive ? lists[s].size() : 0;
      continue;
    }
    send(m, s, message_kind::locate, std::move(lists[s]));
    messages_[last_sent_].owner = owner;
  }
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

// -- messages -----------------------------------------------------------------

uint32_t index_world::take_message() {
  if (free_messages_.empty()) {
    messages_.emplace_back();
    return static_cast<uint32_t>(messages_.size() - 1);
  }
  const auto i = free_messages_.back();
  free_messages_.pop_back();
  return i;
}

void index_world::give_back(uint32_t i) {
  pending_ -= messages_[i].kind == message_kind::beat ? 0 : 1;
  messages_[i] = {};
  free_messages_.push_back(i);
}

void index_world::send(uint32_t m, uint32_t s, message_kind kind, std::vector<uint64_t> pages) {
  auto& who = members_[m];
  last_sent_ = take_message();
  auto& x = messages_[last_sent_];
  const auto of_reader = kind == message_kind::locate;
  x = {kind, m, s, of_reader ? who.links[s] : who.mounts[s].life, 0, m, std::move(pages), now_};
  x.epoch = of_reader ? 0 : who.mounts[s].epoch;
  pending_ += kind == message_kind::beat ? 0 : 1;
  if (who.fate == member_fate::alive)
    at(now_ + hop, event_kind::arrive, last_sent_);
  else
    at(now_ + member_patience, event_kind::fail, last_sent_);
}

void index_world::arrive(uint32_t i) {
  auto& x = messages_[i];
  auto& shard = shards_[x.shard];
  if (!shard.is_up || shard.life != x.life) {
    at(now_ + hop, event_kind::fail, i);
    return;
  }
  const auto begin = shard.begin(now_);
  if (x.kind == message_kind::locate) {
    const auto wait = begin - now_;
    ++seen_.lookups;
    seen_.late += wait > 10ms ? 1 : 0;
    seen_.longest_wait = std::max(seen_.longest_wait, wait);
  }
  const auto done = shard.occupy(now_, handle(x, begin));
  const auto patience = x.kind == message_kind::locate ? reader_patience : member_patience;
  if (done + hop > x.sent + patience)
    at(std::max(now_, x.sent + patience), event_kind::fail, i);
  else
    at(done + hop, event_kind::answer, i);
}

duration index_world::handle(message& x, time_point begin) {
  auto& shard = shards_[x.shard];
  const auto& who = members_[x.member];
  const auto count = static_cast<int64_t>(x.pages.size());
  const auto take = [&](const membership& view) {
    x.known = view.known;
    x.shards_known = view.shards_digest;
  };
  switch (x.kind) {
    case message_kind::mount: {
      auto info = who.info;
      info.epoch = x.epoch;
      take(shard.mount(info, begin));
      return cost::message + reap_some(x.shard);
    }
    case message_kind::beat:
      take(shard.beat({who.info.member, x.epoch, {}}, begin));
      return cost::message;
    case message_kind::publish:
    case message_kind::report: {
      auto news = published_pages{who.info.member, x.epoch, {}};
      for (const auto page : x.pages)
        news.pages.push_back(who.pages.announced(page));
      take(shard.publish(x.kind, news));
      return cost::message + count * cost::published_page;
    }
    case message_kind::withdraw: {
      auto news = withdrawn_pages{who.info.member, x.epoch, {}};
      for (const auto page : x.pages)
        news.keys.push_back(who.pages.announced(page).key);
      take(shard.withdraw(news));
      return cost::message + count * cost::withdrawn_page;
    }
    case message_kind::locate:
      locate(shard, x);
      return cost::message + count * cost::located_key;
  }
  return {};
}

void index_world::locate(simulated_shard& at, message& x) {
  const auto& owner = members_[x.owner];
  auto query = key_batch{};
  for (const auto page : x.pages)
    query.keys.push_back(owner.pages.announced(page).key);
  const auto found = at.locate(query);
  x.shards_known = found.shards_digest;
  const auto is_there = owner.fate == member_fate::alive;
  for (auto i = size_t{0}; i < x.pages.size(); ++i) {
    const auto& copies = found.replicas[i];
    if (copies.empty()) {
      seen_.misses += is_there ? 1 : 0;
      continue;
    }
    const auto page = owner.pages.announced(x.pages[i]);
    const auto right = replica{owner.info.member, page.offset, page.generation, page.length};
    seen_.wrong += copies.size() == 1 && copies[0] == right ? 0 : 1;
    seen_.stale += is_there ? 0 : 1;
  }
}

void index_world::answer(uint32_t i) {
  auto& x = messages_[i];
  auto& who = members_[x.member];
  if (shards_[x.shard].life != x.life || !shards_[x.shard].is_up)
    return fail(i);
  if (who.fate == member_fate::cut_off) {
    at(std::max(now_, x.sent + member_patience), event_kind::fail, i);
    return;
  }
  if (who.fate == member_fate::alive) {
    heard(x.member, x.shards_known);
    auto& here = who.mounts[std::min<size_t>(x.shard, who.mounts.size() - 1)];
    const auto is_same = here.life != 0 && here.epoch == x.epoch;
    const auto is_report = x.kind == message_kind::mount || x.kind == message_kind::report;
    if (is_report && is_same)
      report(x.member, x.shard);
    else if (!is_report && x.kind != message_kind::locate && !x.known && here.life != 0
             && !here.is_reporting && who.links[x.shard] != 0)
      mount(x.member, x.shard);
  }
  give_back(i);
}

void index_world::fail(uint32_t i) {
  const auto& x = messages_[i];
  auto& who = members_[x.member];
  if (who.fate != member_fate::dead) {
    ++seen_.failed;
    if (x.kind == message_kind::locate)
      seen_.misses += members_[x.owner].fate == member_fate::alive ? x.pages.size() : 0;
    else if (who.mounts[x.shard].life == x.life)
      lose_mount(x.member, x.shard);
    if (who.links[x.shard] == x.life)
      lose_link(x.member, x.shard);
  }
  give_back(i);
}

// -- shards -------------------------------------------------------------------

void index_world::poll(uint32_t s) {
  at(now_ + tick_pause, event_kind::poll, s);
  auto& shard = shards_[s];
  if (!shard.is_up)
    return;
  const auto begin = shard.begin(now_);
  if (!shard.table.expire(begin, member_ttl).empty())
    last_dropped_ = last_reaped_ = begin;
  shard.occupy(now_, cost::message + reap_some(s));
}

void index_world::member_gone(uint32_t s, uint32_t m) {
  auto& shard = shards_[s];
  if (!shard.is_up)
    return;
  const auto begin = shard.begin(now_);
  if (shard.table.drop(members_[m].info.member))
    last_dropped_ = last_reaped_ = begin;
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
