#pragma once

#include "hicache/clock.hpp"

namespace hicache {

/// Estimates how long work of a size takes, as a start-up time and a time per unit, from how long
/// it took lately: each sample counts an eighth more than the one before it. A value.
class time_estimate {
public:
  /// @param weight What the sample counts beside others.
  /// @pre size > 0 and weight > 0
  void add(double size, duration time, double weight = 1);

  bool is_known() const noexcept { return weight_ > 0; }

  /// Unless sizes differed, smaller work takes as long as all before and larger work longer in
  /// proportion.
  /// @pre is_known()
  duration time_for(double size) const;

  /// The same in nanoseconds, but all work takes as long as that before unless sizes differed.
  /// @pre is_known()
  double usual_ns_for(double size) const;

private:
  struct line {
    double start_ns = 0;
    double per_unit_ns = 0;
  };

  /// Whether sizes differed enough to tell the two parts apart.
  bool is_line() const noexcept;

  /// @pre is_line()
  line fit() const noexcept;

  // Weighted sums over the samples.

  double weight_ = 0;
  double sizes_ = 0;
  double times_ = 0;
  double squares_ = 0;
  double products_ = 0;
};

} // namespace hicache
