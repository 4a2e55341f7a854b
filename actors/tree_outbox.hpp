#pragma once

#include "cache/oplog/op_log.hpp"
#include "cache/prefix/prefix_cache.hpp"
#include "cache/step/prefill_watch.hpp"
#include "gpu/device.hpp"
#include "messages/interfaces.hpp"

#include <caf/typed_event_based_actor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace hicache {

/// The actors that carry out the tree's decisions.
struct tree_helpers {
  controller_actor controller;
  rank_reduction_core_actor ranks;
  /// Null without L3.
  prefetcher_actor prefetcher;
  backup_actor backup;
  /// Notified of completions, failures and cache events; may be null.
  engine_actor engine;
  /// Null: no recording.
  op_recorder_actor recorder{};
  /// Null: cache events are not published to routers.
  event_publisher_actor publisher{};
  /// Tells copies which engine events to wait for; null if the device has no events.
  std::shared_ptr<page_fences> fences{};
  /// Tokens that the engine computes per second; 0: measured from its inserts.
  double prefill_speed = 0;
};

/// Sends the prefix cache's output to the tree's helpers: effects, cache events, and op log
/// entries. Part of the tree actor.
class tree_outbox {
public:
  /// @param self The tree; must outlive this.
  tree_outbox(tree_core_actor::pointer self, tree_helpers helpers)
    : self_(self), helpers_(std::move(helpers)) {}

  const tree_helpers& helpers() const noexcept { return helpers_; }

  /// Entries not yet sent to the recorder.
  const std::vector<op_log_entry>& notes() const noexcept { return notes_; }

  /// Records what was just applied to the cache.
  template <class Event>
  void note(const Event& event, const prefix_cache& core) {
    if (helpers_.recorder)
      notes_.push_back({event, core.digest()});
  }

  /// Sends the cache's effects and events, and the op log entries.
  /// @param prefill Tells prefetches how long it would take to compute their pages.
  void send(prefix_cache& core, const prefill_watch& prefill, uint32_t page_size);

private:
  void send_effects(std::vector<tree_effect> effects, const prefill_watch& prefill,
                    uint32_t page_size);

  /// Sends cache events to the engine and to routers.
  void send_events(std::vector<cache_change> changes);

  void send_notes();

  tree_core_actor::pointer self_;
  tree_helpers helpers_;
  /// Entries not yet sent, and batches that the recorder has not written.
  std::vector<op_log_entry> notes_;
  size_t unrecorded_ = 0;
  /// Batches of cache events so far, and those that the publisher has not sent.
  uint64_t event_batches_ = 0;
  size_t unpublished_ = 0;
};

} // namespace hicache
