#include "backends/cluster/recent_placements.hpp"

#include "base/check.hpp"

#include <algorithm>

namespace hicache {

recent_placements::answer::answer(std::span<const page_key> of, const placements& where,
                                  time_point last)
  : until(last), keys(of.begin(), of.end()) {
  HICACHE_CHECK(where.replicas.size() == keys.size());
  ends.reserve(keys.size());
  for (const auto& some : where.replicas) {
    replicas.insert(replicas.end(), some.begin(), some.end());
    ends.push_back(static_cast<uint32_t>(replicas.size()));
  }
}

void recent_placements::enter(answer latest) {
  pages_ += latest.keys.size();
  answers_.push_back(std::move(latest));
  while (pages_ > most_pages_)
    drop_oldest();
}

placements recent_placements::recall(std::span<const page_key> keys, time_point now) {
  while (!answers_.empty() && answers_.front().until <= now)
    drop_oldest();
  for (; looked_into_ < oldest_ + answers_.size(); ++looked_into_) {
    const auto& of = answers_[looked_into_ - oldest_].keys;
    for (auto i = size_t{0}; i < of.size(); ++i)
      places_.insert_or_assign(of[i], place{looked_into_, i});
  }
  auto where = placements{};
  where.replicas.resize(keys.size());
  for (auto i = size_t{0}; i < keys.size(); ++i) {
    const auto found = places_.find(keys[i]);
    if (found == places_.end())
      continue;
    const auto& [number, position] = found->second;
    const auto& from = answers_[number - oldest_];
    const auto begin = position == 0 ? 0 : from.ends[position - 1];
    where.replicas[i].assign(from.replicas.begin() + begin,
                             from.replicas.begin() + from.ends[position]);
  }
  return where;
}

void recent_placements::drop_oldest() {
  const auto& gone = answers_.front().keys;
  for (auto i = size_t{0}; i < gone.size() && oldest_ < looked_into_; ++i)
    if (const auto found = places_.find(gone[i]);
        found != places_.end() && found->second.first == oldest_)
      places_.erase(found);
  pages_ -= gone.size();
  answers_.pop_front();
  ++oldest_;
  looked_into_ = std::max(looked_into_, oldest_);
}

} // namespace hicache
