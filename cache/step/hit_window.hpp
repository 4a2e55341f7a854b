#pragma once

#include "hicache/ids.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace hicache {

/// What a rank offers of a prefetch, and what the ranks agree on: the fewest pages, the longest
/// times.
struct hit_length {
  /// Pages that L3 holds, and those of them, from the first on, that are worth loading.
  int64_t found = 0;
  int64_t wanted = 0;
  /// Estimated time to load the found pages, and to compute them; 0: not known.
  int64_t load_ns = 0;
  int64_t compute_ns = 0;

  friend bool operator==(const hit_length&, const hit_length&) = default;
};

/// Agrees with the other ranks on how many pages L3 holds for each prefetch, without coordination:
/// each reduction carries a window that begins at the oldest unresolved prefetch, and a rank enters
/// it as soon as it knows that one. So the reductions match up on all ranks whatever the timing.
/// The owner performs the reductions. Single-threaded.
class hit_window {
public:
  /// Announces a prefetch. Ids are consecutive from 1, in the same order on all ranks.
  void issue(fetch_id id);

  /// Records this rank's hit length.
  /// @pre `id` was issued, is not resolved, and was not known before; no number is negative.
  void known(fetch_id id, const hit_length& length);

  /// The vector to reduce to its minimum now: limits::hit_window_size entries of `entry_values`
  /// numbers, -1 first in those of unknown lengths. Nothing if the oldest prefetch is unknown or a
  /// reduction is in flight. The returned vector counts as in flight until `agreed`.
  std::optional<std::vector<int64_t>> next();

  /// Handles the outcome of the reduction.
  /// @returns the resolved prefetches, oldest first, with what the ranks agree on: at least one.
  std::vector<std::pair<fetch_id, hit_length>> agreed(std::span<const int64_t> minimum);

  /// Prefetches without an agreed length.
  uint64_t unresolved() const noexcept { return lengths_.size(); }

  static constexpr auto entry_values = size_t{4};

private:
  fetch_id oldest_ = 1;
  /// This rank's lengths of oldest_ and those after it, where known.
  std::deque<std::optional<hit_length>> lengths_;
  bool in_flight_ = false;
};

} // namespace hicache
