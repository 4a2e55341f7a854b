#include "cache/store/repair_queue.hpp"

#include "base/limits.hpp"

#include <algorithm>

namespace hicache {

namespace {

duration pause_after(uint32_t tries) {
  auto pause = duration{limits::repair_retry_first};
  for (auto i = uint32_t{1}; i < tries && pause < limits::repair_retry_last; ++i)
    pause *= 2;
  return std::min<duration>(pause, limits::repair_retry_last);
}

} // namespace

void repair_queue::note(const page_key& key, time_point now) {
  const auto [at, is_new] = pages_.try_emplace(key);
  if (is_new)
    wait(at, now + delay_);
  else
    at->second.is_lost_again = at->second.is_under_way;
}

std::vector<page_key> repair_queue::take(time_point now, size_t most) {
  auto taken = std::vector<page_key>{};
  while (!waiting_.empty() && waiting_.begin()->first <= now && taken.size() < most) {
    taken.push_back(waiting_.extract(waiting_.begin()).value().second);
    pages_.at(taken.back()).is_under_way = true;
  }
  return taken;
}

void repair_queue::settle(std::span<const page_key> taken, std::span<const page_key> lacking,
                          time_point now) {
  const auto still = std::set<page_key>(lacking.begin(), lacking.end());
  for (const auto& key : taken) {
    const auto at = pages_.find(key);
    auto& page = at->second;
    page.is_under_way = false;
    if (still.contains(key)) {
      wait(at, now + pause_after(++page.tries));
    } else if (page.is_lost_again) {
      page.tries = 0;
      wait(at, now + delay_);
    } else {
      pages_.erase(at);
    }
  }
}

void repair_queue::wait(pages::iterator at, time_point due) {
  at->second.is_lost_again = false;
  waiting_.emplace(due, at->first);
}

} // namespace hicache
