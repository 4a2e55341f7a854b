#pragma once

#include "messages/interfaces.hpp"

#include <caf/actor_system.hpp>

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <optional>
#include <utility>
#include <vector>

namespace hicache {

/// The metrics of a node (`docs/operations.md`); empty if it did not answer in time.
std::vector<prometheus::MetricFamily> to_metrics(const std::optional<node_status>& status);

/// Prometheus collector of a node; queries it at each scrape.
class node_metrics final : public prometheus::Collectable {
public:
  /// @param system Must outlive this.
  node_metrics(caf::actor_system& system, node_actor node)
    : system_(system), node_(std::move(node)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

private:
  caf::actor_system& system_;
  const node_actor node_;
};

} // namespace hicache
