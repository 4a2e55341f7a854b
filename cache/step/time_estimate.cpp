#include "cache/step/time_estimate.hpp"

#include "base/check.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace hicache {

namespace {

/// Weight of all samples so far against a new one of weight 1: outliers are forgotten after some
/// twenty samples.
constexpr auto decay = 0.875;

/// Sizes differ if their standard deviation is at least this share of their mean; below it, noise
/// would decide.
constexpr auto least_spread = 0.25;

duration to_duration(double ns) {
  return duration{std::llround(std::min(ns, 9e18))};
}

} // namespace

void time_estimate::add(double size, duration time) {
  HICACHE_CHECK(size > 0);
  const auto ns = static_cast<double>(time.count());
  weight_ = decay * weight_ + 1;
  sizes_ = decay * sizes_ + size;
  times_ = decay * times_ + ns;
  squares_ = decay * squares_ + size * size;
  products_ = decay * products_ + size * ns;
}

bool time_estimate::is_line() const noexcept {
  const auto variance = weight_ * squares_ - sizes_ * sizes_;
  return variance >= least_spread * least_spread * sizes_ * sizes_;
}

time_estimate::line time_estimate::fit() const noexcept {
  const auto slope
    = (weight_ * products_ - sizes_ * times_) / (weight_ * squares_ - sizes_ * sizes_);
  const auto start = (times_ - slope * sizes_) / weight_;
  if (slope < 0)
    return {times_ / weight_, 0};
  if (start < 0)
    return {0, times_ / sizes_};
  return {start, slope};
}

duration time_estimate::time_for(double size) const {
  HICACHE_CHECK(is_known());
  if (is_line()) {
    const auto fitted = fit();
    return to_duration(fitted.start_ns + fitted.per_unit_ns * size);
  }
  return to_duration(std::max(times_ / weight_, size * times_ / sizes_));
}

double time_estimate::per_unit_ns() const {
  HICACHE_CHECK(is_known());
  return is_line() ? fit().per_unit_ns : times_ / sizes_;
}

} // namespace hicache
