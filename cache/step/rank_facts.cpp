#include "cache/step/rank_facts.hpp"

#include <algorithm>

namespace hicache {

void rank_facts::add(const operation_done& fact) {
  switch (fact.kind) {
    case operation_kind::write:
      writes_.complete(fact.id);
      if (!fact.ok)
        failed_writes_.insert(fact.id);
      break;
    case operation_kind::load:
      loads_.complete(fact.id);
      if (!fact.ok)
        failed_loads_.insert(fact.id);
      break;
    case operation_kind::backup:
      stored_[fact.id]
        = fact.is_in_quarantine ? backup_given_up : static_cast<int64_t>(fact.stored);
      lost_ns_ = std::max<int64_t>(lost_ns_, fact.lost.time_since_epoch().count());
      break;
  }
  is_device_lost_ |= fact.device_lost;
}

bool rank_facts::has_news(std::span<const operation_id> backups) const {
  // A backup known to be abandoned is news again when it ends.
  const auto is_news = [this](operation_id id) {
    const auto i = stored_.find(id);
    return i != stored_.end() && (i->second != backup_given_up || !in_quarantine_.contains(id));
  };
  return writes_.done() > known_.writes_done || loads_.done() > known_.loads_done || is_device_lost_
         || !arrived_.empty() || std::ranges::any_of(backups, is_news);
}

bool rank_facts::has_more(std::span<const operation_id> backups) const {
  return known_.next_fetch != step_facts::no_fetch
         || ((known_.write_failed || known_.load_failed) && has_news(backups));
}

/// What this rank offers of a prefetch that ended here.
fetch_fact rank_facts::fact_of(const fetched_pages& fetch) {
  auto fact = fetch_fact{static_cast<int64_t>(fetch.l2_pages->size()),
                         static_cast<int64_t>(fetch.found), fetch.why};
  auto above = int64_t{0};
  for (auto tier = size_t{0}; tier < fact.from_above.size(); ++tier)
    fact.from_above[tier] = above += static_cast<int64_t>(fetch.by_tier[tier]);
  return fact;
}

step_facts rank_facts::mine(const step_openings& open, int64_t now_ns) const {
  auto facts
    = step_facts{.writes_done = writes_.done(), .loads_done = loads_.done(), .now_ns = now_ns};
  for (const auto id : open.backups) {
    const auto i = stored_.find(id);
    facts.backups.push_back(i == stored_.end() ? -1 : i->second);
  }
  for (const auto id : open.fetches) {
    auto& fetch = facts.fetches.emplace_back();
    if (const auto i = arrived_.find(id); i != arrived_.end())
      fetch = fact_of(i->second);
  }
  const auto is_here = [this](fetch_id id) { return arrived_.contains(id); };
  if (const auto first = std::ranges::find_if(open.later_fetches, is_here);
      first != open.later_fetches.end())
    facts.next_fetch = first - open.later_fetches.begin();
  if (lost_ns_ > 0)
    facts.loss_age_ns = std::max<int64_t>(now_ns - lost_ns_, 0);
  return facts;
}

step_facts rank_facts::unchanged(size_t backups) const {
  return {.writes_done = known_.writes_done,
          .loads_done = known_.loads_done,
          .backups = std::vector<int64_t>(backups, -1),
          .now_ns = known_.now_ns};
}

step_offer rank_facts::offer(const step_openings& open, int64_t now_ns, uint64_t digest) const {
  const auto oldest = [](const auto& ids) { return ids.empty() ? operation_id{0} : *ids.begin(); };
  return {mine(open, now_ns), digest, oldest(failed_writes_), oldest(failed_loads_),
          is_device_lost_};
}

std::vector<page_list> rank_facts::take(const step_openings& open, step_facts& facts) {
  for (auto i = size_t{0}; i < facts.backups.size(); ++i)
    if (const auto id = open.backups[i]; facts.backups[i] >= 0) {
      stored_.erase(id);
      in_quarantine_.erase(id);
    } else if (facts.backups[i] == backup_given_up) {
      in_quarantine_.insert(id);
    }
  auto lists = std::vector<page_list>(facts.fetches.size());
  for (auto i = size_t{0}; i < facts.fetches.size(); ++i) {
    auto& fact = facts.fetches[i];
    if (fact.arrived < 0)
      continue;
    if (const auto ended = arrived_.extract(open.fetches[i])) {
      const auto& mine = ended.mapped();
      lists[i] = mine.l2_pages;
      fact.tiers = mine.tiers;
      // If one rank does not know of any page, the others' estimates are not its own.
      if (fact.found > 0) {
        fact.load_ns = mine.load_estimate.count();
        fact.compute_ns = mine.compute_estimate.count();
      }
    }
  }
  return lists;
}

uint64_t rank_facts::agree(const step_minima& agreed) {
  const auto copies = [](const step_facts& facts) { return facts.writes_done + facts.loads_done; };
  const auto before = copies(known_);
  known_ = agreed.facts;
  failed_writes_.erase(failed_writes_.begin(), failed_writes_.upper_bound(known_.writes_done));
  failed_loads_.erase(failed_loads_.begin(), failed_loads_.upper_bound(known_.loads_done));
  is_device_lost_ &= !agreed.device_lost;
  return copies(known_) - before;
}

} // namespace hicache
