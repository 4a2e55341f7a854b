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

/// The copies, backups and prefetches that ended on this rank, and which of them all ranks know to
/// have ended. Becomes this rank's offer to a step, and takes the step's outcome. A value;
/// single-threaded.
class rank_facts {
public:
  /// A copy or a backup ended on this rank.
  void add(const operation_done& fact);

  /// A prefetch ended on this rank.
  void add(const fetched_pages& fact);

  /// The device takes no copies any more.
  void lose_device() noexcept { is_device_lost_ = true; }

  /// True if something ended on this rank that no step has made a fact yet.
  bool has_news(std::span<const operation_id> backups) const;

  /// True if the last step left over what it could have ended: prefetches beyond those of one step,
  /// or what ended behind a copy that failed.
  bool has_more(std::span<const operation_id> backups) const;

  /// What this rank knows.
  step_facts mine(const step_openings& open, int64_t now_ns) const;

  /// What the ranks knew after the last step; nothing more has ended.
  step_facts unchanged(size_t backups) const;

  step_offer offer(const step_openings& open, int64_t now_ns, uint64_t digest) const;

  /// Forgets what the facts end. Called before the cache takes them.
  /// @returns this rank's L2 pages of each prefetch of the step; none if it does not end.
  std::vector<page_list> take(const step_openings& open, const step_facts& facts);

  /// Takes note of what all ranks know now.
  /// @returns the copies that all ranks know to have ended since the last step
  uint64_t agree(const step_minima& agreed);

  /// The time of the last agreement.
  int64_t now_ns() const noexcept { return known_.now_ns; }

private:
  in_order_counter writes_;
  in_order_counter loads_;
  /// Copies that failed here and are no facts yet.
  std::set<operation_id> failed_writes_;
  std::set<operation_id> failed_loads_;
  bool is_device_lost_ = false;
  /// Prefetches that ended here.
  std::map<fetch_id, fetched_pages> arrived_;
  /// Backups that ended here: pages stored, or backup_given_up.
  std::map<operation_id, int64_t> stored_;
  /// Backups of which all ranks know that one has given them up.
  std::set<operation_id> in_quarantine_;
  /// Agreed so far.
  step_facts known_;
};

} // namespace hicache
