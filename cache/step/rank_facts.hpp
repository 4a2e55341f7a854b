#pragma once

#include "cache/step/in_order_counter.hpp"
#include "cache/step/step_vector.hpp"
#include "messages/commands.hpp"

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

namespace hicache {

/// Copies, backups and prefetches that ended on this rank, and those that ended on all ranks. Makes
/// this rank's offer to a step, and takes the step's outcome. A value; single-threaded.
class rank_facts {
public:
  /// A copy or a backup ended on this rank.
  void add(const operation_done& fact);

  /// A prefetch ended on this rank.
  void add(const fetched_pages& fact) { arrived_[fact.id] = fact; }

  /// The GPU device cannot copy any more.
  void lose_device() noexcept { is_device_lost_ = true; }

  /// True if an operation ended on this rank that no step has completed yet.
  bool has_news(std::span<const operation_id> backups) const;

  /// True if the last step left something to complete: prefetches beyond the bound of one step, or
  /// operations behind a failed copy.
  bool has_more(std::span<const operation_id> backups) const;

  /// This rank's facts.
  step_facts mine(const step_openings& open, int64_t now_ns) const;

  /// The facts after the last step; nothing more has ended.
  step_facts unchanged(size_t backups) const;

  step_offer offer(const step_openings& open, int64_t now_ns, uint64_t digest) const;

  /// Removes what the facts complete, and adds to them what this rank knows of the prefetches that
  /// end: their tiers' names, and estimates, which are equal on all ranks if pages were found. Call
  /// before the cache applies them.
  /// @returns this rank's L2 pages of each prefetch of the step; none if it does not end.
  std::vector<page_list> take(const step_openings& open, step_facts& facts);

  /// Records the agreed facts.
  /// @returns the number of copies that have ended on all ranks since the last step
  uint64_t agree(const step_minima& agreed);

  /// The time of the last reduction.
  int64_t now_ns() const noexcept { return known_.now_ns; }

private:
  static fetch_fact fact_of(const fetched_pages& fetch);

  in_order_counter writes_;
  in_order_counter loads_;
  /// Copies that failed here and are not completed yet.
  std::set<operation_id> failed_writes_;
  std::set<operation_id> failed_loads_;
  bool is_device_lost_ = false;
  /// Prefetches that ended here.
  std::map<fetch_id, fetched_pages> arrived_;
  /// Backups that ended here: pages stored, or backup_given_up.
  std::map<operation_id, int64_t> stored_;
  /// Backups of which all ranks know that one has abandoned them.
  std::set<operation_id> in_quarantine_;
  /// As in operation_done, in nanoseconds; 0: nothing was lost.
  int64_t lost_ns_ = 0;
  step_facts known_;
};

} // namespace hicache
