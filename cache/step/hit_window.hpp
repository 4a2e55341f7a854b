#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace hicache {

/// Agrees with the other ranks on how many pages L3 holds for each prefetch, without coordination:
/// each reduction carries a window that begins at the oldest unresolved prefetch, and a rank enters
/// it as soon as it knows that one. So the reductions match up on all ranks whatever the timing.
/// The owner performs the reductions. Single-threaded.
class hit_window {
public:
  /// Announces a prefetch. Ids are consecutive from 1, in the same order on all ranks.
  void issue(fetch_id id);

  /// Records this rank's hit length.
  /// @pre `id` was issued, is not resolved, and was not known before; pages >= 0.
  void known(fetch_id id, int64_t pages);

  /// The vector to reduce to its minimum now: limits::hit_window_size entries, -1 for unknown
  /// lengths. Nothing if the oldest prefetch is unknown or a reduction is in flight. The returned
  /// vector counts as in flight until `agreed`.
  std::optional<std::vector<int64_t>> next();

  /// Handles the outcome of the reduction.
  /// @returns the resolved prefetches, oldest first, with the pages every rank has: at least one.
  std::vector<std::pair<fetch_id, int64_t>> agreed(std::span<const int64_t> minimum);

  /// Prefetches without an agreed length.
  uint64_t unresolved() const noexcept { return lengths_.size(); }

private:
  fetch_id oldest_ = 1;
  /// This rank's lengths of oldest_ and those after it.
  std::deque<int64_t> lengths_;
  bool in_flight_ = false;
};

} // namespace hicache
