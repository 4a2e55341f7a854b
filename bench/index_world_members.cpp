// Actions of simulated members: mounting, reporting, writing.

#include "base/limits.hpp"
#include "bench/index_world.hpp"

#include <algorithm>

namespace hicache::bench {

namespace {

using namespace std::chrono_literals;

/// Time from the eviction of pages to the publication of their replacements.
constexpr auto write_time = duration{1ms};

constexpr auto batch = uint64_t{limits::storage_batch_pages};

/// Consecutive pages of a member.
std::vector<page_id> run_of(uint32_t m, uint64_t first, uint64_t count) {
  auto pages = std::vector<page_id>{};
  pages.reserve(count);
  for (auto page = first; page < first + count; ++page)
    pages.push_back(id_of(m, page));
  return pages;
}

/// Calls `send` with parts of at most limits::index_batch_keys pages.
template <class Send>
void in_parts(const std::vector<page_id>& pages, Send send) {
  for (auto first = pages.begin(); first != pages.end();) {
    const auto count = std::min<ptrdiff_t>(limits::index_batch_keys, pages.end() - first);
    send(std::vector<page_id>{first, first + count});
    first += count;
  }
}

} // namespace

void index_world::tick(uint32_t m) {
  auto& who = members_[m];
  if (who.fate == member_fate::dead)
    return;
  at(now_ + tick_pause, event_kind::tick, m);
  look_at_index(m);
  if (now_ >= who.next_beat) {
    who.next_beat = now_ + beat_pause;
    for (auto s = uint32_t{0}; s < who.mounts.size(); ++s)
      if (who.mounts[s].progress.is_told())
        send(m, s, message_kind::beat);
  }
  repair(m);
}

void index_world::look_at_index(uint32_t m) {
  auto& who = members_[m];
  if (who.mounts.size() != who.reader_shards)
    reshard(m);
  for (auto s = uint32_t{0}; s < who.mounts.size(); ++s)
    if (who.links[s].life != 0 && who.links[s].number != who.mounts[s].link)
      mount(m, s);
}

void index_world::reshard(uint32_t m) {
  auto& who = members_[m];
  const auto before = who.pages;
  who.mounts.resize(who.reader_shards);
  who.pages.reshard(first_shards(who.reader_shards));
  auto lost = std::vector<std::vector<page_id>>(who.reader_shards);
  auto gained = lost;
  for (auto page = before.first(); page < before.last(); ++page) {
    const auto& was = before.keepers(page);
    const auto& is = who.pages.keepers(page);
    for (auto role = size_t{0}; role < is.size(); ++role) {
      if (is[role] != was[role])
        gained[is[role]].push_back(id_of(m, page));
      if (std::ranges::find(is, was[role]) == is.end())
        lost[was[role]].push_back(id_of(m, page));
    }
  }
  for (auto s = uint32_t{0}; s < who.reader_shards; ++s) {
    tell(m, s, gained[s]);
    withdraw_from(m, s, lost[s]);
  }
}

void index_world::tell(uint32_t m, uint32_t s, const std::vector<page_id>& pages) {
  if (members_[m].mounts[s].progress.is_told())
    in_parts(pages, [&](auto part) { send(m, s, message_kind::publish, std::move(part)); });
  else
    unsettle(m, s, pages);
}

void index_world::withdraw_from(uint32_t m, uint32_t s, const std::vector<page_id>& pages) {
  if (members_[m].mounts[s].progress.is_mounted())
    in_parts(pages, [&](auto part) { send(m, s, message_kind::withdraw, std::move(part)); });
  else
    unsettle(m, s, pages);
}

void index_world::unsettle(uint32_t m, uint32_t s, const std::vector<page_id>& pages) {
  if (pages.empty())
    return;
  auto keys = std::vector<page_key>{};
  for (const auto id : pages)
    keys.push_back(members_[writer_of(id)].pages.key(number_of(id)));
  auto& progress = members_[m].mounts[s].progress;
  progress.unsettle(keys);
  if (progress.is_told())
    tell_unsettled(m, s);
}

void index_world::tell_unsettled(uint32_t m, uint32_t s) {
  auto offered = std::vector<page_id>{};
  auto gone = offered;
  for (const auto& key : members_[m].mounts[s].progress.take_unsettled()) {
    const auto id = id_of(key);
    const auto is_offered = holds(m, id) && std::ranges::count(keepers(id), s) > 0;
    (is_offered ? offered : gone).push_back(id);
  }
  withdraw_from(m, s, gone);
  tell(m, s, offered);
}

void index_world::note_told(bool before, const simulated_mount& here) {
  const auto is_told = here.progress.is_told();
  unsettled_ += before ? 1 : 0;
  unsettled_ -= is_told ? 1 : 0;
  if (is_told && !before)
    last_settled_ = now_;
}

void index_world::mount(uint32_t m, uint32_t s) {
  auto& who = members_[m];
  auto& here = who.mounts[s];
  const auto was_told = here.progress.is_told();
  here.link = who.links[s].number;
  const auto resumes = here.progress.mount(++who.info.epoch);
  note_told(was_told, here);
  send(m, s, message_kind::mount).resumes = resumes;
}

void index_world::report(uint32_t m, uint32_t s) {
  auto& who = members_[m];
  auto& here = who.mounts[s];
  auto next = here.progress.reported_to();
  auto pages = who.pages.pages_of(static_cast<uint8_t>(s), next, limits::index_batch_keys);
  const auto slots = who.pages.slots();
  for (; next >= slots && next < slots + who.copies.size(); ++next) {
    if (pages.size() == limits::index_batch_keys)
      break;
    if (const auto id = who.copies[next - slots]; std::ranges::count(keepers(id), s) > 0)
      pages.push_back(id);
  }
  if (!pages.empty()) {
    seen_.reported += pages.size();
    send(m, s, message_kind::report, std::move(pages)).next_slot = next;
    return;
  }
  here.progress.complete();
  note_told(false, here);
  tell_unsettled(m, s);
  send(m, s, message_kind::beat);
}

std::vector<std::vector<page_id>> index_world::by_shard(uint32_t m,
                                                        std::span<const page_id> pages) const {
  auto lists = std::vector<std::vector<page_id>>(members_[m].mounts.size());
  for (const auto id : pages)
    for (const auto keeper : keepers(id))
      lists[keeper].push_back(id);
  return lists;
}

void index_world::write(uint32_t m) {
  auto& who = members_[m];
  if (who.fate == member_fate::dead)
    return;
  at(now_ + every(load_.writes_per_s), event_kind::write, m);
  if (!is_loaded_)
    return;
  const auto lists = by_shard(m, run_of(m, who.pages.first(), batch));
  who.pages.evict(batch);
  for (auto s = uint32_t{0}; s < lists.size(); ++s)
    withdraw_from(m, s, lists[s]);
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
  const auto lists = by_shard(m, run_of(m, first, batch));
  for (auto s = uint32_t{0}; s < lists.size(); ++s)
    tell(m, s, lists[s]);
}

void index_world::link(uint32_t m, uint32_t s) {
  auto& who = members_[m];
  auto& here = who.links[s];
  if (who.fate == member_fate::dead || here.life != 0)
    return;
  if (who.fate == member_fate::cut_off || !shards_[s].is_up) {
    at(now_ + link_pause_max, event_kind::link, m, s);
    return;
  }
  here.life = shards_[s].life;
  ++here.number;
}

void index_world::lose_link(uint32_t m, uint32_t s) {
  auto& who = members_[m];
  auto& link = who.links[s];
  if (std::exchange(link.life, 0) == 0)
    return;
  at(now_ + link_pause_min + random_up_to(link_pause_max - link_pause_min), event_kind::link, m, s);
  if (who.fate == member_fate::alive)
    at(now_ + hop, event_kind::gone, s, m, link.number);
  if (s >= who.mounts.size() || who.mounts[s].link != link.number)
    return;
  auto& here = who.mounts[s];
  const auto was_told = here.progress.is_told();
  here.progress.lose();
  note_told(was_told, here);
}

void index_world::heard(uint32_t m, uint64_t shards_known) {
  auto& who = members_[m];
  if (shards_known <= who.reader_shards || who.is_asking_map)
    return;
  who.is_asking_map = true;
  at(now_ + link_pause_min + 2 * hop, event_kind::map, m);
}

} // namespace hicache::bench
