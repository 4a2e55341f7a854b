#pragma once

#include "base/limits.hpp"
#include "cache/prefix/step_facts.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace hicache {

/// What the next step of a cache may end, in the order of `step_facts`.
struct step_openings {
  std::span<const operation_id> backups;
  std::span<const fetch_id> fetches;
  /// Prefetches of later steps.
  std::span<const fetch_id> later_fetches;
};

/// What one rank offers to a step (docs/internals.md, "The tree is a replicated state machine").
struct step_offer {
  /// As far as this rank knows; `now_ns` is its own clock.
  step_facts facts;
  uint64_t digest = 0;
  /// The oldest copy in each direction that failed here and is no fact yet; 0: none. The agreed
  /// count ends with the oldest of all ranks (`step_facts::write_failed`).
  operation_id failed_write = 0;
  operation_id failed_load = 0;
  /// True if the device takes no copies any more here.
  bool device_lost = false;
};

/// What all ranks know after the step's reduction.
struct step_minima {
  step_facts facts;
  bool digests_agree = false;
  /// True if any rank's device takes no copies any more.
  bool device_lost = false;
};

/// Length of every vector of a step, whatever is open, so that ranks that have diverged can still
/// compare their digests.
inline constexpr size_t step_values = 9 + limits::step_backups + 3 * limits::step_fetches;

/// The vector whose element-wise minimum over the ranks is a `step_minima`.
std::vector<int64_t> encode_step(const step_offer& offer);

/// Reads the minimum of the ranks' vectors. If the digests differ, its facts mean nothing.
/// @param open What this rank offered.
/// @pre minimum.size() == step_values
step_minima decode_step(std::span<const int64_t> minimum, const step_openings& open);

} // namespace hicache
