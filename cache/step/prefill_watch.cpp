#include "cache/step/prefill_watch.hpp"

#include <algorithm>
#include <cmath>

namespace hicache {

prefill_watch::prefill_watch(double tokens_per_second)
  : stated_ns_(tokens_per_second > 0 ? 1e9 / tokens_per_second : 0) {}

void prefill_watch::allocated(request_id request, uint64_t cached, uint64_t room, time_point now) {
  if (stated_ns_ > 0)
    return;
  auto& open = computing_.try_emplace(request, computation{cached, room, now}).first->second;
  open.room = std::max(open.room, room);
}

void prefill_watch::inserted(request_id request, uint64_t tokens, uint64_t prompt, time_point now) {
  const auto entry = computing_.find(request);
  if (entry == computing_.end())
    return;
  auto& [from, room, begun] = entry->second;
  if (tokens > from && tokens <= prompt) {
    const auto count = tokens - from;
    measured_.add(static_cast<double>(from + tokens) / 2,
                  (now - begun) / static_cast<int64_t>(count), static_cast<double>(count));
  }
  if (tokens < std::min(room, prompt)) {
    from = tokens;
    begun = now;
  } else {
    computing_.erase(entry);
  }
}

double prefill_watch::token_ns(double position) const {
  if (stated_ns_ > 0)
    return stated_ns_;
  return measured_.is_known() ? measured_.usual_ns_for(position) : 0;
}

duration prefill_watch::page_time(uint64_t first, uint64_t pages, uint32_t page_size) const {
  const auto middle = static_cast<double>(first) + static_cast<double>(pages) / 2;
  return duration{std::llround(page_size * token_ns(page_size * middle))};
}

} // namespace hicache
