#pragma once

#include "hicache/storage_backend.hpp"
#include "messages/interfaces.hpp"

#include <caf/actor_system.hpp>

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace hicache {

/// The metrics of a node (`docs/operations.md`).
/// @param status Empty if it did not answer in time.
/// @param tiers The stores that the one below its memory is made of, if they answered in time.
std::vector<prometheus::MetricFamily> to_metrics(const std::optional<node_status>& status,
                                                 const std::vector<tier_health>& tiers = {});

/// Prometheus collector of a node; queries it at each scrape.
class node_metrics final : public prometheus::Collectable {
public:
  /// @param system Must outlive this.
  /// @param below The store below its memory; null if there is none.
  node_metrics(caf::actor_system& system, node_actor node, std::shared_ptr<storage_backend> below)
    : system_(system), node_(std::move(node)), below_(std::move(below)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

private:
  caf::actor_system& system_;
  const node_actor node_;
  const std::shared_ptr<storage_backend> below_;
};

} // namespace hicache
