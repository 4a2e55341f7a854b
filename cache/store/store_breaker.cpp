#include "cache/store/store_breaker.hpp"

#include "base/limits.hpp"

#include <algorithm>
#include <bit>

namespace hicache {

namespace {

static_assert(limits::breaker_window < 64);

constexpr auto window_mask = (uint64_t{1} << limits::breaker_window) - 1;

} // namespace

const char* to_string(breaker_state state) noexcept {
  constexpr auto names = std::array{"closed", "half_open", "open"};
  return names[static_cast<size_t>(state)];
}

const char* to_string(breaker_cause cause) noexcept {
  constexpr auto names = std::array{"none", "late", "failing", "stuck"};
  return names[static_cast<size_t>(cause)];
}

std::optional<store_breaker::pass> store_breaker::admit(time_point now) {
  if (state_ == breaker_state::closed)
    return pass{period_, false};
  if (stuck_ >= limits::stuck_calls || is_probing_)
    return std::nullopt;
  if (state_ == breaker_state::open) {
    if (now < until_)
      return std::nullopt;
    enter(breaker_state::half_open, now);
  }
  is_probing_ = true;
  return pass{period_, true};
}

void store_breaker::succeeded(store_call call, pass shown, time_point now) {
  if (shown.period != period_)
    return;
  in_a_row_[static_cast<size_t>(call)] = 0;
  window_ = (window_ << 1) & window_mask;
  seen_ = std::min(seen_ + 1, limits::breaker_window);
  is_probing_ = false;
  if (state_ != breaker_state::half_open || call != failed_call_)
    return;
  enter(breaker_state::closed, now);
  cause_ = breaker_cause::none;
  pause_ = {};
  window_ = 0;
  seen_ = 0;
}

void store_breaker::failed(store_call call, pass shown, breaker_cause cause, time_point now) {
  if (shown.period != period_)
    return;
  const auto in_a_row = ++in_a_row_[static_cast<size_t>(call)];
  window_ = ((window_ << 1) | 1) & window_mask;
  seen_ = std::min(seen_ + 1, limits::breaker_window);
  if (shown.is_probe || in_a_row >= policy_.failures || window_is_bad())
    open(call, cause, now);
}

void store_breaker::set_stuck(size_t calls, time_point now) {
  stuck_ = calls;
  if (stuck_ >= limits::stuck_calls && state_ == breaker_state::closed)
    open(failed_call_, breaker_cause::stuck, now);
}

void store_breaker::enter(breaker_state state, time_point now) {
  state_ = state;
  since_ = now;
  ++period_;
  in_a_row_ = {};
  is_probing_ = false;
}

void store_breaker::open(store_call call, breaker_cause cause, time_point now) {
  if (state_ == breaker_state::closed)
    ++openings_;
  failed_call_ = call;
  cause_ = cause;
  pause_ = std::clamp(2 * pause_, policy_.pause_min, policy_.pause_max);
  until_ = now + pause_;
  enter(breaker_state::open, now);
}

bool store_breaker::window_is_bad() const noexcept {
  return seen_ == limits::breaker_window
         && 2 * static_cast<uint32_t>(std::popcount(window_)) >= limits::breaker_window;
}

} // namespace hicache
