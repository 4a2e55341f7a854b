#pragma once

#include "messages/commands.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

namespace hicache {

/// Effects of operations, in order. The tree actor forwards each to the actor concerned.
using tree_effect
  = std::variant<write_command, load_command, backup_command, drop_command, fetch_command,
                 terminate_command, staging_command, reclaim_command>;

/// The pages as an effect names them.
inline page_list share_pages(std::vector<page_index> pages) {
  return std::make_shared<const std::vector<page_index>>(std::move(pages));
}

/// Outcome of one fetch on all ranks.
struct fetch_fact {
  /// Pages that arrived without a gap on every rank, or -1 if some rank is not finished.
  int64_t arrived = -1;
  /// Pages known to be in L3 on every rank.
  int64_t found = 0;
  /// The worst miss reason of all ranks.
  miss_reason why = miss_reason::none;
  /// Of `arrived`: at [k] those from the tiers of L3 above number k + 1, so that neighbours differ
  /// by the pages of a tier. Never decreasing, and at most `arrived`.
  std::array<int64_t, limits::storage_tiers - 1> from_above{};
  /// As in fetched_pages; 0 unless pages were found.
  int64_t load_ns = 0;
  int64_t compute_ns = 0;
  /// The names of the tiers on this rank, which ranks need not agree on; null: none.
  tier_names tiers{};

  friend bool operator==(const fetch_fact&, const fetch_fact&) = default;
};

/// In `step_facts::backups`: a rank's store missed the deadline and may still read the pages.
inline constexpr int64_t backup_given_up = -2;

/// What all ranks agreed on in a step.
struct step_facts {
  /// No prefetch beyond those of the step ended on any rank.
  static constexpr int64_t no_fetch = INT64_MAX;

  /// L3 has evicted nothing, or cannot tell.
  static constexpr int64_t no_loss = INT64_MAX;

  /// Copies finished since start, in issue order.
  uint64_t writes_done = 0;
  uint64_t loads_done = 0;
  /// One per element of backing_up(), in its order: pages stored without a gap on every rank; -1 if
  /// some rank is not finished; backup_given_up if a rank has abandoned it (quarantine).
  std::vector<int64_t> backups{};
  /// One per element of fetching(), in its order.
  std::vector<fetch_fact> fetches{};
  /// The slowest rank's clock in nanoseconds; ignored if it is before the previous value.
  int64_t now_ns = 0;
  /// Index into fetching_later() of the first fetch that ended on some rank: begins the next step.
  int64_t next_fetch = no_fetch;
  /// True if the last of the writes (loads) done failed on some rank. It is new in this step, and
  /// none before it failed on any rank.
  bool write_failed = false;
  bool load_failed = false;
  /// The time since the latest use of an object that some rank's L3 has evicted, in nanoseconds.
  int64_t loss_age_ns = no_loss;

  friend bool operator==(const step_facts&, const step_facts&) = default;
};

} // namespace hicache
