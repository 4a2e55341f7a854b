#pragma once

#include "hicache/clock.hpp"

#include <algorithm>
#include <cstdint>

namespace hicache {

/// Limits bytes per second and per day. Both limits are token buckets that start full, of one
/// second and of one day. A pure state machine; time is an argument.
class byte_budget {
public:
  /// @param per_second, per_day 0: unlimited.
  byte_budget(uint64_t per_second, uint64_t per_day);

  /// Takes bytes. More than a whole bucket is granted when the bucket is full, and leaves a debt.
  /// @returns false, and takes nothing, if they are over the budget
  bool take(uint64_t bytes, time_point now);

  /// Returns bytes that were taken and not used. A bucket that has filled up since stays full.
  void give_back(uint64_t bytes);

private:
  struct bucket {
    /// 0: unlimited.
    double capacity = 0;
    double per_second = 0;
    double level = 0;

    void fill(double seconds);
    bool has(double bytes) const { return capacity == 0 || level >= std::min(bytes, capacity); }
  };

  bucket second_;
  bucket day_;
  time_point filled_{};
};

} // namespace hicache
