#include "cache/step/prefill_watch.hpp"

namespace hicache {

prefill_watch::prefill_watch(double tokens_per_second)
  : stated_ns_(tokens_per_second > 0 ? 1e9 / tokens_per_second : 0) {}

void prefill_watch::allocated(request_id request, uint64_t cached, time_point now) {
  if (stated_ns_ == 0)
    computing_.try_emplace(request, computation{cached, now});
}

void prefill_watch::inserted(request_id request, uint64_t tokens, uint64_t prompt, time_point now) {
  const auto ended = computing_.extract(request);
  if (!ended)
    return;
  const auto& [from, begun] = ended.mapped();
  if (tokens > from && tokens <= prompt)
    measured_.add(static_cast<double>(tokens - from), now - begun);
}

double prefill_watch::token_ns() const noexcept {
  if (stated_ns_ > 0)
    return stated_ns_;
  return measured_.is_known() ? measured_.per_unit_ns() : 0;
}

} // namespace hicache
