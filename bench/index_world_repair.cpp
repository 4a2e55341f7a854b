// Replaces the replicas lost with a member, from members that still hold the pages.

#include "base/limits.hpp"
#include "bench/index_world.hpp"
#include "messages/page_header.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hicache::bench {

namespace {

/// Bandwidth between two members with a 10 Gbit/s adapter.
constexpr auto transfer_bytes_per_second = uint64_t{1'250'000'000};

constexpr auto page_bytes = slot_bytes_for(object_bytes);

} // namespace

void index_world::repair(uint32_t m) {
  auto& who = members_[m];
  auto& spread = who.spread;
  if (spread.is_running)
    return;
  auto taken = who.losses.take(now_, limits::repair_pages);
  if (taken.empty())
    return;
  spread = {};
  spread.taken = std::move(taken);
  std::ranges::copy_if(spread.taken, std::back_inserter(spread.pages),
                       [&](const page_key& key) { return holds(m, id_of(key)); });
  spread.is_running = true;
  ++repairing_;
  list_members(m, purpose::repairing);
}

void index_world::next_batch(uint32_t m) {
  auto& who = members_[m];
  auto& spread = who.spread;
  if (who.fate == member_fate::dead)
    return;
  spread.batch.clear();
  spread.bytes = 0;
  if (spread.begin == spread.pages.size()) {
    repaired_.left_out += spread.lacking.size();
    who.losses.settle(spread.taken, spread.lacking, now_);
    spread.is_running = false;
    --repairing_;
    return;
  }
  const auto count = std::min(limits::storage_batch_pages, spread.pages.size() - spread.begin);
  for (auto i = spread.begin; i < spread.begin + count; ++i) {
    auto& wanted = spread.batch.emplace_back();
    wanted.key = spread.pages[i];
    wanted.copies = load_.copies;
  }
  find_holders(m);
}

void index_world::find_holders(uint32_t m) {
  auto& who = members_[m];
  auto& batch = who.spread.batch;
  const auto known = first_shards(who.reader_shards);
  auto positions = std::vector<std::vector<size_t>>(who.reader_shards);
  for (auto k = size_t{0}; k < batch.size(); ++k) {
    const auto [first, second] = known.keepers_of(batch[k].key);
    if (who.links[first].life != 0)
      positions[first].push_back(k);
    else if (who.links[second].life != 0)
      positions[second].push_back(k);
  }
  for (auto s = uint32_t{0}; s < positions.size(); ++s) {
    if (positions[s].empty())
      continue;
    auto pages = std::vector<page_id>{};
    for (const auto k : positions[s])
      pages.push_back(id_of(batch[k].key));
    ++who.spread.open;
    auto& question = send(m, s, message_kind::locate, std::move(pages));
    question.why = purpose::repairing;
    question.positions = std::move(positions[s]);
  }
  if (who.spread.open == 0)
    next_round(m);
}

void index_world::enter_holders(message& x, bool failed) {
  auto& spread = members_[x.member].spread;
  for (auto k = size_t{0}; k < x.positions.size() && !failed; ++k)
    for (const auto& copy : x.replicas[k])
      spread.batch[x.positions[k]].holders.push_back(copy.member);
  if (--spread.open == 0)
    next_round(x.member);
}

void index_world::next_round(uint32_t m) {
  auto& who = members_[m];
  auto& spread = who.spread;
  const auto source = copy_source{who.info.member, who.info.host, true};
  spread.asked = plan_copies(spread.batch, spread.listing.members, source);
  spread.open = spread.asked.size();
  auto together = uint64_t{0};
  for (const auto& [target, positions] : spread.asked) {
    together += positions.size() * page_bytes;
    const auto time = pause_after(together, transfer_bytes_per_second);
    at(now_ + 2 * hop + time, event_kind::copied, m, static_cast<uint32_t>(target - 1));
  }
  if (spread.open > 0)
    return;
  for (const auto k : lacking_copies(spread.batch, spread.listing.members, source))
    spread.lacking.push_back(spread.batch[k].key);
  spread.begin += spread.batch.size();
  if (spread.begin == spread.pages.size())
    next_batch(m);
  else
    at(now_ + pause_after(spread.bytes, repair_policy{}.bytes_per_second), event_kind::spread, m);
}

void index_world::copied(uint32_t source, uint32_t target) {
  auto& who = members_[source];
  if (who.fate == member_fate::dead)
    return;
  auto& spread = who.spread;
  const auto is_reached
    = who.fate == member_fate::alive && members_[target].fate == member_fate::alive;
  auto news = std::vector<page_id>{};
  auto taken = uint64_t{0};
  for (const auto k : spread.asked.at(target + 1)) {
    auto& page = spread.batch[k];
    const auto id = id_of(page.key);
    const auto is_taken = is_reached && holds(source, id);
    (is_taken ? page.confirmed : page.refused).push_back(target + 1);
    taken += is_taken ? 1 : 0;
    if (!is_taken || holds(target, id))
      continue;
    add_copy(target, id);
    news.push_back(id);
  }
  spread.bytes += taken * page_bytes;
  note_repair(source, news.size());
  const auto lists = by_shard(target, news);
  for (auto s = uint32_t{0}; s < lists.size(); ++s)
    tell(target, s, lists[s]);
  if (--spread.open == 0)
    next_round(source);
}

void index_world::note_repair(uint32_t source, uint64_t pages) {
  if (pages == 0)
    return;
  auto& who = members_[source];
  const auto bytes = pages * page_bytes;
  const auto since = std::chrono::duration<double>(now_ - who.last_repair).count();
  const auto allowed = since * static_cast<double>(repair_policy{}.bytes_per_second);
  who.bytes_ahead = std::max(who.bytes_ahead - allowed, 0.0) + static_cast<double>(bytes);
  who.repair_bytes += bytes;
  who.last_repair = now_;
  repaired_.most_ahead = std::max(repaired_.most_ahead, who.bytes_ahead);
  if (repaired_.pages == 0)
    repaired_.first = now_;
  repaired_.pages += pages;
  repaired_.last = now_;
}

} // namespace hicache::bench
