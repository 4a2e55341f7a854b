#pragma once

#include "cache/prefix/cache_settings.hpp"
#include "cache/prefix/lock_census.hpp"
#include "cache/prefix/step_facts.hpp"
#include "cache/radix/radix_tree.hpp"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace hicache {

/// Writes from L2 to L3 between their command and the step that ends them. L3 takes no page before
/// its parent; a backup is a chain of nodes of one path. Part of a prefix_cache.
class open_backups {
public:
  /// What all ranks agreed on about one backup, as in `step_facts::backups`.
  using fact = std::pair<operation_id, int64_t>;

  open_backups(radix_tree& tree, const cache_settings& settings, std::vector<tree_effect>& effects)
    : tree_(tree), settings_(settings), effects_(effects) {}

  /// Takes nodes of the path to `end` that L3 may have evicted for nodes that it lacks. For use of
  /// the path by a request: so each is written again at most once per use and eviction.
  void doubt_path(radix_node& end);

  /// Begins to write the nodes of the path to `end` that L3 lacks, as far as L2 has them and L3 has
  /// their parents. Drops the oldest backups beyond the limit.
  void back_up_path(radix_node& end);

  /// The same for children of nodes that L3 has just received, and for children that had to wait.
  void back_up(std::vector<radix_node*> children);

  /// Commands all ranks to end the backups that have not begun.
  void drop_all();

  /// Backups that a step may end. Defines the order of `step_facts::backups`.
  std::span<const operation_id> next() const noexcept;

  /// Pairs a step's facts with their operation ids. Call before the step changes anything else,
  /// which may begin backups.
  std::vector<fact> name(std::span<const int64_t> stored) const;

  /// Applies a step's facts.
  void finish(std::span<const fact> facts);

  bool empty() const noexcept { return backups_.empty(); }

  /// True if a step can end any backup. Excludes quarantined ones, whose end is unpredictable.
  bool in_flight() const noexcept { return backups_.size() > held_; }

  /// Pages of backups that are not dropped.
  uint64_t waiting_pages() const noexcept { return waiting_pages_; }

  /// Pages of backups in quarantine.
  uint64_t quarantined_pages() const noexcept { return quarantined_pages_; }

  /// Issued, open, waiting pages, quarantined pages.
  std::array<uint64_t, 4> digest() const noexcept {
    return {issued_, backups_.size(), waiting_pages_, quarantined_pages_};
  }

  bool is_open(operation_id id) const { return backups_.contains(id); }

  void count_locks(lock_census& census) const;

  void check_invariants() const;

private:
  struct open_backup {
    /// The last node of the path; stays the same when the node is split. Null in quarantine.
    radix_node* end = nullptr;
    std::shared_ptr<const std::vector<page_index>> pages;
    uint64_t epoch = 0;
    /// The logical time when it began.
    int64_t begun_ns = 0;
    /// Nearest ancestor without a copy in L2. L1-locked, because L2 nodes below depend on it; null
    /// if L2 has the whole path.
    radix_node* l1_end = nullptr;
    bool is_dropped = false;
    /// A rank's store missed the deadline: the backup is over, and its nodes may leave L2. Their
    /// pages are held until no rank's store reads them any more.
    bool is_in_quarantine = false;

    uint64_t page_count() const noexcept { return pages->size(); }
  };

  void begin(const std::vector<radix_node*>& nodes);
  void drop(operation_id id, open_backup& backup);
  void end(operation_id id, uint64_t stored);
  void quarantine(operation_id id);
  void end_quarantine(operation_id id);
  open_backup take(operation_id id);
  void unlock(const open_backup& backup);

  radix_tree& tree_;
  const cache_settings& settings_;
  std::vector<tree_effect>& effects_;
  std::map<operation_id, open_backup> backups_;
  /// In issue order; quarantined ones, of which there are `held_`, last.
  std::vector<operation_id> order_;
  uint64_t held_ = 0;
  uint64_t issued_ = 0;
  uint64_t waiting_pages_ = 0;
  uint64_t quarantined_pages_ = 0;
};

} // namespace hicache
