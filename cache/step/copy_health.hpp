#pragma once

#include "base/limits.hpp"
#include "cache/step/step_vector.hpp"

#include <cstdint>

namespace hicache {

/// Decides from agreed facts whether L1-L2 copies still work. Equal on every rank. A value.
class copy_health {
public:
  /// Failed copies in the step's facts: at most one in each direction.
  static uint32_t failures(const step_facts& facts) noexcept {
    return (facts.write_failed ? 1U : 0U) + (facts.load_failed ? 1U : 0U);
  }

  /// Records a step.
  /// @param copies Copies that ended in it, including failed ones.
  /// @returns why no hits are served from now on, until `reset`; null if the instance is healthy,
  /// or was already unhealthy
  const char* note(const step_minima& agreed, uint64_t copies) noexcept {
    const auto failed = failures(agreed.facts);
    if (copies > failed)
      failures_in_a_row_ = 0;
    failures_in_a_row_ += failed;
    if (is_ill_ || (!agreed.device_lost && failures_in_a_row_ < limits::copy_failures_in_a_row))
      return nullptr;
    is_ill_ = true;
    return agreed.device_lost ? "the device of a rank takes no copies any more"
                              : "too many copies between L1 and L2 failed in a row";
  }

  /// The cache was cleared: copies are tried again.
  void reset() noexcept { *this = {}; }

private:
  uint32_t failures_in_a_row_ = 0;
  bool is_ill_ = false;
};

} // namespace hicache
