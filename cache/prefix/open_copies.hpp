#pragma once

#include "cache/prefix/cache_settings.hpp"
#include "cache/prefix/lock_census.hpp"
#include "cache/prefix/open_backups.hpp"
#include "cache/prefix/step_facts.hpp"
#include "cache/radix/radix_tree.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace hicache {

/// Copies between L1 and L2 between their command and the step that confirms them. Copies of a kind
/// finish in issue order. Part of a prefix_cache.
///
/// Also decides what is copied to L2: by write policy, and staged for L3, which is written only
/// from L2.
class open_copies {
public:
  open_copies(radix_tree& tree, open_backups& backups, const cache_settings& settings,
              std::vector<tree_effect>& effects)
    : tree_(tree), backups_(backups), settings_(settings), effects_(effects) {}

  // -- L1 -> L2 ---------------------------------------------------------------

  /// Writes the nodes of the path that are missing in L2, root first, up to the first node with
  /// fewer hits or without room. Without `may_evict` only free pages count as room, except for
  /// pinned nodes, which could not leave L1 otherwise, and if L2 is exported, because then copies
  /// have their own place in its eviction order.
  /// @returns how many pages.
  uint64_t write_path(radix_node& end, uint64_t least_hits, bool may_evict);

  /// Writes one node to these L2 pages.
  void write(radix_node& node, std::vector<page_index> host);

  /// Queues the path to `end` for staging, as far as L3 lacks it.
  void want_staged(const radix_node& end);

  /// Begins queued copies as far as L2's staging share allows.
  void stage();

  void forget_staging() { unstaged_.clear(); }

  // -- L2 -> L1 ---------------------------------------------------------------

  /// Begins to load the L2 part of the path to `end`.
  /// @param pages L1 pages, one for each page of that part.
  layer_progress_ptr load(radix_node& end, std::vector<page_index> pages);

  /// The progress that a user of the path to `end` has to wait for; null if there is none.
  layer_progress_ptr progress_on(const radix_node& end) const;

  // -- steps ------------------------------------------------------------------

  /// Completes the writes up to number `done`. If `last_failed`, L2 lacks the pages of the last
  /// one.
  void finish_writes(uint64_t done, bool last_failed);

  /// Completes the loads up to number `done`. If `last_failed`, the pages of the last one, and
  /// everything computed from them, are invalid: `discard` takes them out of the tree.
  void finish_loads(uint64_t done, bool last_failed,
                    const std::function<void(radix_node&)>& discard);

  bool in_flight() const noexcept { return !writes_.open.empty() || !loads_.open.empty(); }

  /// Writes issued and done, loads issued and done, paths waiting to be staged.
  std::array<uint64_t, 5> digest() const noexcept {
    return {writes_.issued, writes_.done, loads_.issued, loads_.done, unstaged_.size()};
  }

  void count_locks(lock_census& census) const;

  void check_invariants() const;

private:
  /// Copies of one kind.
  struct queue {
    struct copy {
      operation_id id = 0;
      /// The last node of the path; stays the same when the node is split.
      radix_node* end = nullptr;
      layer_progress_ptr progress;
    };

    uint64_t issued = 0;
    uint64_t done = 0;
    std::deque<copy> open;

    operation_id begin(radix_node& end, layer_progress_ptr progress = nullptr) {
      open.push_back({++issued, &end, std::move(progress)});
      return issued;
    }

    copy take_oldest() {
      auto oldest = std::move(open.front());
      open.pop_front();
      ++done;
      return oldest;
    }
  };

  bool reserve_host(radix_node& node);
  void begin_write(const std::vector<radix_node*>& nodes);
  std::vector<radix_node*> unstaged_run(radix_node& end) const;
  void finish_write(const queue::copy& write);
  void fail_write(const queue::copy& write);
  void finish_load(const queue::copy& load);
  void fail_load(const queue::copy& load, const std::function<void(radix_node&)>& discard);

  radix_tree& tree_;
  open_backups& backups_;
  const cache_settings& settings_;
  std::vector<tree_effect>& effects_;
  queue writes_;
  queue loads_;
  /// Pages of open writes.
  uint64_t writing_pages_ = 0;
  /// Ends of the paths waiting to be staged, in order of arrival.
  std::deque<node_id> unstaged_;
};

} // namespace hicache
