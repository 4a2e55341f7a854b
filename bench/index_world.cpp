#include "bench/index_world.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "messages/page_header.hpp"
#include "messages/placement.hpp"
#include "messages/shard_map.hpp"

#include <algorithm>
#include <numeric>

namespace hicache::bench {

namespace {

constexpr auto batch = uint64_t{limits::storage_batch_pages};

} // namespace

duration every(double per_second) {
  return std::chrono::duration_cast<duration>(std::chrono::duration<double>{1 / per_second});
}

index_world::index_world(uint32_t members, uint64_t pages_each, uint32_t shards, uint64_t seed,
                         const world_load& load)
  : load_(load), random_(seed) {
  HICACHE_CHECK(members > 0 && shards > 0 && shards < limits::index_shards);
  HICACHE_CHECK(pages_each > 2 * batch && load.writes_per_s > 0 && load.lookups_per_s > 0);
  for (auto number = 0U; number < shards; ++number) {
    shards_.emplace_back().shards_known = shards;
    at(now_ + beat_pause, event_kind::poll, number);
  }
  for (auto m = uint32_t{0}; m < members; ++m) {
    auto& made = members_.emplace_back(member_pages{seed, m, pages_each});
    made.info.member = m + uint64_t{1};
    made.info.host = "host-" + std::to_string(m / load.members_per_host);
    made.info.memory_name = "hicache-" + std::to_string(m);
    made.info.page_address = "10.0.0.1:" + std::to_string(20'000 + m % 40'000);
    made.info.capacity_bytes = slot_bytes_for(object_bytes) * pages_each * load.copies;
    made.reader_shards = shards;
    made.links.assign(shards, {1, 1});
    made.mounts.resize(shards);
    made.routes.known.resize(members);
    made.routes.offered.resize(members);
    made.next_beat = now_ + random_up_to(beat_pause);
    at(now_ + random_up_to(tick_pause), event_kind::tick, m);
    at(now_ + random_up_to(every(load.lookups_per_s)), event_kind::ask, m);
    if (load.copies == 1)
      at(now_ + random_up_to(every(load.writes_per_s)), event_kind::write, m);
    else
      at(now_ + random_up_to(limits::member_list_memory), event_kind::place, m);
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
  if (load_.copies > 1)
    fill_copies();
}

void index_world::fill_copies() {
  auto infos = std::vector<member_info>{};
  for (const auto& who : members_)
    infos.push_back(who.info);
  for (auto m = uint32_t{0}; m < members_.size(); ++m) {
    const auto& who = members_[m];
    for (auto first = uint64_t{0}; first < who.pages.slots(); first += batch)
      for (const auto target :
           place_replicas(who.pages.key(first), infos, who.info.host, load_.copies - 1))
        for (auto page = first; page < std::min(first + batch, who.pages.slots()); ++page)
          add_copy(static_cast<uint32_t>(target - 1), id_of(m, page));
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

void index_world::at(time_point when, event_kind kind, uint32_t a, uint32_t b, uint32_t c) {
  events_.push({when, ++order_, kind, a, b, c});
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
        who.links.emplace_back();
        link(x.a, s);
      }
      return;
    }
    case event_kind::place:
      return place(x.a);
    case event_kind::copied:
      return copied(x.a, x.b);
    case event_kind::spread:
      return next_batch(x.a);
    case event_kind::arrive:
      return arrive(x.a);
    case event_kind::answer:
      return answer(x.a);
    case event_kind::fail:
      return fail(x.a);
    case event_kind::poll:
      return poll(x.a);
    case event_kind::expire_replicas:
      return expire_replicas(x.a);
    case event_kind::gone:
      return member_gone(x.a, x.b, x.c);
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

// -- operations ---------------------------------------------------------------

void index_world::set_loaded(bool loaded) {
  is_loaded_ = loaded;
}

void index_world::restart_shard(uint32_t s, duration down) {
  shards_[s].end();
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
  at(now_ + beat_pause, event_kind::poll, number);
  // The shard that it joins knows it at once, the others after their next exchange.
  for (auto s = uint32_t{0}; s < number; ++s)
    at(now_ + (s == 0 ? hop : random_up_to(beat_pause)), event_kind::learn, s);
  for (auto& who : members_)
    unsettled_ += who.fate == member_fate::dead ? 0 : 1;
}

void index_world::kill_member(uint32_t m, bool closes_connections) {
  auto& who = members_[m];
  HICACHE_CHECK(who.fate == member_fate::alive);
  who.fate = member_fate::dead;
  for (auto s = uint32_t{0}; s < shard_count(); ++s) {
    const auto is_told = s < who.mounts.size() && who.mounts[s].progress.is_told();
    unsettled_ -= is_told ? 0 : 1;
    if (closes_connections)
      at(now_ + hop, event_kind::gone, s, m, who.links[s].number);
  }
  repairing_ -= std::exchange(who.spread.is_running, false) ? 1 : 0;
  who.losses = repair_queue{};
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

void index_world::disconnect(uint32_t first, uint32_t count) {
  for (auto m = first; m < first + count; ++m)
    for (auto s = uint32_t{0}; s < members_[m].links.size(); ++s)
      lose_link(m, s);
}

bool index_world::is_repairing() const {
  const auto has_losses = [](const simulated_member& x) { return x.losses.size() > 0; };
  return repairing_ > 0 || std::ranges::any_of(members_, has_losses);
}

bool index_world::is_quiet() const {
  const auto is_busy
    = [](const simulated_shard& x) { return x.is_expiring || !x.suspended.empty(); };
  return pending_ == 0 && !is_repairing() && std::ranges::none_of(shards_, is_busy);
}

repair_figures index_world::take_repair_figures() {
  for (auto& who : members_)
    repaired_.most_bytes = std::max(repaired_.most_bytes, std::exchange(who.repair_bytes, 0));
  return std::exchange(repaired_, {});
}

// -- pages --------------------------------------------------------------------

std::array<uint8_t, 2> index_world::keepers(page_id id) const {
  return members_[writer_of(id)].pages.keepers(number_of(id));
}

bool index_world::holds(uint32_t m, page_id id) const {
  if (writer_of(id) == m)
    return members_[m].pages.holds(number_of(id));
  const auto at = copies_.find(id);
  return at != copies_.end()
         && std::ranges::any_of(at->second, [m](const auto& x) { return x.holder == m; });
}

std::optional<announced_page> index_world::announced(uint32_t m, page_id id) const {
  auto page = members_[writer_of(id)].pages.announced(number_of(id));
  if (writer_of(id) == m)
    return page;
  if (const auto at = copies_.find(id); at != copies_.end())
    for (const auto& copy : at->second)
      if (copy.holder == m) {
        page.offset = copy.place * slot_bytes_for(object_bytes);
        page.generation = 1;
        return page;
      }
  return std::nullopt;
}

size_t index_world::holders(page_id id) const {
  const auto is_reached = [this](uint32_t m) { return members_[m].fate == member_fate::alive; };
  const auto writer = writer_of(id);
  auto count = size_t{is_reached(writer) && holds(writer, id) ? 1U : 0U};
  if (const auto at = copies_.find(id); at != copies_.end())
    for (const auto& copy : at->second)
      count += is_reached(copy.holder) ? 1 : 0;
  return count;
}

void index_world::add_copy(uint32_t m, page_id id) {
  auto& who = members_[m];
  copies_[id].push_back({m, static_cast<uint32_t>(who.pages.slots() + who.copies.size())});
  who.copies.push_back(id);
}

// -- shards -------------------------------------------------------------------

void index_world::poll(uint32_t s) {
  at(now_ + beat_pause, event_kind::poll, s);
  auto& shard = shards_[s];
  if (!shard.is_up)
    return;
  const auto begin = shard.begin(now_);
  if (shard.drop_silent(begin))
    last_dropped_ = last_expired_ = begin;
  shard.occupy(now_, cost::message + expire_some_replicas(s));
}

void index_world::member_gone(uint32_t s, uint32_t m, uint32_t link) {
  auto& shard = shards_[s];
  if (!shard.is_up)
    return;
  const auto begin = shard.begin(now_);
  if (shard.lose(members_[m].info.member, link, begin))
    last_dropped_ = last_expired_ = begin;
  shard.occupy(now_, cost::message + expire_some_replicas(s));
}

duration index_world::expire_some_replicas(uint32_t s) {
  auto& shard = shards_[s];
  if (shard.is_expiring)
    return {};
  if (!shard.expire_replicas())
    return {};
  shard.is_expiring = true;
  const auto time = limits::index_expiry * cost::expired_replica;
  at(shard.begin(now_) + time + limits::index_expiry_pause, event_kind::expire_replicas, s);
  return time;
}

void index_world::expire_replicas(uint32_t s) {
  auto& shard = shards_[s];
  if (!shard.is_up)
    return;
  shard.is_expiring = false;
  last_expired_ = shard.occupy(now_, cost::message + expire_some_replicas(s));
}

} // namespace hicache::bench
