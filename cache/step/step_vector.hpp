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

/// One rank's contribution to a step (docs/internals.md, "The tree is a replicated state machine").
struct step_offer {
  /// As known to this rank; `now_ns` is its own clock.
  step_facts facts;
  uint64_t digest = 0;
  /// The oldest copy in each direction that failed here and is not completed yet; 0: none. The
  /// agreed count ends with the oldest of all ranks (`step_facts::write_failed`).
  operation_id failed_write = 0;
  operation_id failed_load = 0;
  /// True if this rank's GPU device cannot copy any more.
  bool device_lost = false;
};

/// What all ranks know after the step's reduction.
struct step_minima {
  step_facts facts;
  bool digests_agree = false;
  /// True if any rank's GPU device cannot copy any more.
  bool device_lost = false;
};

/// Fixed length of every step's vector, so that diverged ranks can still compare their digests.
inline constexpr size_t step_values
  = 10 + limits::step_backups + (2 + limits::storage_tiers) * limits::step_fetches;

/// The vector whose element-wise minimum over the ranks is a `step_minima`.
std::vector<int64_t> encode_step(const step_offer& offer);

/// Decodes the minimum of the ranks' vectors. If the digests differ, its facts are meaningless. It
/// lacks what fetches tell without a reduction (`rank_facts::take`).
/// @param open As offered by this rank.
/// @pre minimum.size() == step_values
step_minima decode_step(std::span<const int64_t> minimum, const step_openings& open);

} // namespace hicache
