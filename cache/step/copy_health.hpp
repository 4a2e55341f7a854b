#pragma once

#include "base/limits.hpp"
#include "cache/step/step_vector.hpp"

#include <cstdint>

namespace hicache {

/// Decides from what the ranks agreed on whether the instance can still copy between L1 and L2. The
/// same on every rank. A value.
class copy_health {
public:
  /// Copies that the step says have failed on some rank: at most one in each direction.
  static uint32_t failures(const step_facts& facts) noexcept {
    return (facts.write_failed ? 1U : 0U) + (facts.load_failed ? 1U : 0U);
  }

  /// Takes note of a step.
  /// @param copies Copies that ended with it, failed ones included.
  /// @returns why no hit is served from now on, until `reset`; null if the instance is well, or was
  /// not well before
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

  /// The cache was cleared, so copies are tried again.
  void reset() noexcept { *this = {}; }

private:
  uint32_t failures_in_a_row_ = 0;
  bool is_ill_ = false;
};

} // namespace hicache
