#include "cache/step/time_estimate.hpp"

#include "base/check.hpp"

#include <algorithm>
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

void time_estimate::add(double size, duration time, double weight) {
  HICACHE_CHECK(size > 0 && weight > 0);
  const auto ns = static_cast<double>(time.count());
  weight_ = decay * weight_ + weight;
  sizes_ = decay * sizes_ + weight * size;
  times_ = decay * times_ + weight * ns;
  squares_ = decay * squares_ + weight * size * size;
  products_ = decay * products_ + weight * size * ns;
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
  const auto usual = usual_ns_for(size);
  return to_duration(is_line() ? usual : std::max(usual, size * times_ / sizes_));
}

double time_estimate::usual_ns_for(double size) const {
  HICACHE_CHECK(is_known());
  const auto fitted = is_line() ? fit() : line{times_ / weight_, 0};
  return fitted.start_ns + fitted.per_unit_ns * size;
}

} // namespace hicache
