#pragma once

#include "messages/interfaces.hpp"

#include <caf/actor_system.hpp>

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace hicache {

/// Status of the shards of one process, by number; nothing if a shard did not answer in time.
using shard_figures = std::map<uint32_t, std::optional<index_status>>;

/// The metrics of an index process (`docs/operations.md`). Unknown values are omitted.
/// @relates shard_figures
std::vector<prometheus::MetricFamily> to_metrics(const shard_figures& shards);

/// Prometheus collector of an index process; queries its shards at each scrape.
class index_metrics final : public prometheus::Collectable {
public:
  /// @param system Must outlive this.
  index_metrics(caf::actor_system& system, std::map<uint32_t, index_actor> shards)
    : system_(system), shards_(std::move(shards)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

private:
  caf::actor_system& system_;
  const std::map<uint32_t, index_actor> shards_;
};

} // namespace hicache
