#pragma once

#include "base/error.hpp"
#include "cache/prefix_cache.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace hicache {

/// What one rank offers at a step (`lockstep.md`).
struct step_offer {
  /// Copies and backups finished here, in issue order, since start.
  uint64_t writes_done = 0;
  uint64_t loads_done = 0;
  uint64_t backups_done = 0;
  /// This rank's clock, nanoseconds.
  int64_t now_ns = 0;
  uint64_t digest = 0;
  /// True if a copy failed here, which every rank must learn.
  bool failed = false;
  /// One per prefetch being ended: pages that arrived, or -1 if it is not finished.
  std::vector<int64_t> fetched;
};

/// What all ranks know after the step's reduction.
struct step_agreement {
  step_facts facts;
  bool digests_agree = false;
  /// True if a copy failed on any rank.
  bool failed = false;
};

/// The vector whose element-wise minimum over the ranks is a `step_agreement`.
std::vector<int64_t> encode_step(const step_offer& offer);

/// Reads the minimum of the ranks' vectors.
/// @returns configuration_mismatch if its length is not that of a step with `fetches` prefetches
/// being ended.
result<step_agreement> decode_step(std::span<const int64_t> minimum, size_t fetches);

} // namespace hicache
