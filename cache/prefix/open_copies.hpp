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

/// Copies between L1 and L2 between their command and the step that makes them a fact. Copies of a
/// kind finish in issue order. Part of a prefix_cache.
///
/// Also decides what is copied to L2: by write policy, and for L3's sake ("staging"), since L3 is
/// written from L2 only.
class open_copies {
public:
  open_copies(radix_tree& tree, open_backups& backups, const cache_settings& settings,
              std::vector<tree_effect>& effects)
    : tree_(tree), backups_(backups), settings_(settings), effects_(effects) {}

  // -- L1 -> L2 ---------------------------------------------------------------

  /// Writes the nodes of the path that L2 lacks, root first, up to the first with fewer hits or for
  /// which there is no room. Without `may_evict` only free pages count as room; but pinned nodes
  /// may evict, which could not leave L1 otherwise, and so may all if L2 is exported, since then
  /// copies have a place of their own in its eviction order.
  /// @returns how many pages.
  uint64_t write_path(radix_node& end, uint64_t least_hits, bool may_evict);

  /// Writes one node to these L2 pages.
  void write(radix_node& node, std::vector<page_index> host);

  /// Has the path to `end` copied to L2 for L3's sake, as far as L3 lacks it, when its turn comes.
  void want_staged(const radix_node& end);

  /// Begins such copies as far as L2's share for them allows.
  void stage();

  void forget_staging() { unstaged_.clear(); }

  // -- L2 -> L1 ---------------------------------------------------------------

  /// Begins to load the L2 part of the path to `end`.
  /// @param pages L1 pages, one for each page of that part.
  layer_progress_ptr load(radix_node& end, std::vector<page_index> pages);

  /// What a request has to wait for that uses the path to `end`; null if that is nothing.
  layer_progress_ptr progress_on(const radix_node& end) const;

  // -- steps ------------------------------------------------------------------

  /// Makes the writes up to number `done` facts. If `last_failed`, L2 does not get the pages of the
  /// last one.
  void finish_writes(uint64_t done, bool last_failed);

  /// Makes the loads up to number `done` facts. If `last_failed`, the pages of the last one hold no
  /// valid bytes, nor does what was computed from them: `discard` takes them out of the tree.
  void finish_loads(uint64_t done, bool last_failed,
                    const std::function<void(radix_node&)>& discard);

  bool in_flight() const noexcept { return !writes_.open.empty() || !loads_.open.empty(); }

  /// Writes issued and done, loads issued and done, paths that wait to be staged.
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
      /// The last node of the path; stays so when the node is split.
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

    /// Ends the oldest copy.
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
  /// Ends of paths that wait to be staged, in the order in which they came.
  std::deque<node_id> unstaged_;
};

} // namespace hicache
