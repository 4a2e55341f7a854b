#pragma once

#include "messages/commands.hpp"
#include "runtime/rank_store.hpp"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace hicache {

/// Capacity of a tier on one rank.
struct tier_capacity {
  uint64_t pages = 0;
  uint64_t bytes = 0;
};

/// Snapshot of one rank's metrics.
struct rank_figures {
  uint32_t rank = 0;
  tier_capacity l1;
  tier_capacity l2;
  /// Sum over tree, controller, prefetcher and backup; empty if one of them did not answer in time.
  std::optional<rank_counters> counters;
  /// Empty if L3 did not answer in time, for example while it is being attached or detached.
  std::optional<store_figures> store;
};

/// The metrics of a rank (`docs/operations.md`). Unknown values are omitted.
/// @relates rank_figures
std::vector<prometheus::MetricFamily> to_metrics(const rank_figures& figures);

/// Prometheus collector of a rank.
class rank_metrics final : public prometheus::Collectable {
public:
  /// @param look Called concurrently from several threads.
  explicit rank_metrics(std::function<rank_figures()> look) : look_(std::move(look)) {}

  std::vector<prometheus::MetricFamily> Collect() const override { return to_metrics(look_()); }

private:
  const std::function<rank_figures()> look_;
};

} // namespace hicache
