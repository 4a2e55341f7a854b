#pragma once

#include "base/limits.hpp"
#include "cache/prefix/prefix_cache.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace hicache {

/// What one rank offers at a step (docs/internals.md, "The tree is a replicated state
/// machine").
struct step_offer {
  /// As far as this rank knows; `now_ns` is its own clock.
  step_facts facts;
  uint64_t digest = 0;
  /// The oldest copy in each direction that failed here and is no fact yet; 0 is none. Then the
  /// agreed number ends with it (`step_facts::write_failed`).
  operation_id failed_write = 0;
  operation_id failed_load = 0;
  /// True if the device takes no copies any more here.
  bool device_lost = false;
};

/// What all ranks know after the step's reduction.
struct step_agreement {
  step_facts facts;
  bool digests_agree = false;
  /// True if any rank's device takes no copies any more.
  bool device_lost = false;
};

/// Length of every vector of a step, whatever is open: ranks that have diverged, too, can compare
/// their digests.
inline constexpr size_t step_values = 9 + limits::step_backups + 3 * limits::step_fetches;

/// The vector whose element-wise minimum over the ranks is a `step_agreement`.
std::vector<int64_t> encode_step(const step_offer& offer);

/// Reads the minimum of the ranks' vectors. If the digests differ, its facts are none.
/// @param offered What this rank offered: as many backups and prefetches.
/// @pre minimum.size() == step_values
step_agreement decode_step(std::span<const int64_t> minimum, const step_facts& offered);

} // namespace hicache
