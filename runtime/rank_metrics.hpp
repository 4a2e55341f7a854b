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

/// Room of a tier on one rank.
struct tier_capacity {
  uint64_t pages = 0;
  uint64_t bytes = 0;
};

/// What one rank can tell of itself at any moment.
struct rank_figures {
  uint32_t rank = 0;
  tier_capacity l1;
  tier_capacity l2;
  /// Of the tree, the controller, the prefetcher and the backup; nothing if one of them did not
  /// answer in time.
  std::optional<rank_counters> counters;
  /// Nothing if L3 did not answer in time, as while it is being attached or detached.
  std::optional<store_figures> store;
};

/// The metrics of a rank (`docs/operations.md`). What is not known is left out.
/// @relates rank_figures
std::vector<prometheus::MetricFamily> to_metrics(const rank_figures& figures);

/// Shows a rank to Prometheus.
class rank_metrics final : public prometheus::Collectable {
public:
  /// @param look Called by several threads at once.
  explicit rank_metrics(std::function<rank_figures()> look) : look_(std::move(look)) {}

  std::vector<prometheus::MetricFamily> Collect() const override { return to_metrics(look_()); }

private:
  const std::function<rank_figures()> look_;
};

} // namespace hicache
