#pragma once

#include "launch/replay_report.hpp"

#include <prometheus/collectable.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace hicache {

/// Prometheus collector of a replay's counters (`docs/operations.md`). Requests and tokens are
/// equal on all ranks and exported by rank 0 only.
class replay_metrics final : public prometheus::Collectable {
public:
  explicit replay_metrics(uint32_t rank);

  /// Updates the exported values. Always on the same thread.
  /// @param so_far This rank's own, before `gather`.
  void show(const replay_totals& so_far);

  std::vector<prometheus::MetricFamily> Collect() const override;

private:
  const uint32_t rank_;
  mutable std::mutex mutex_; // Guards the counts.
  replay_counts counts_;
  prometheus::Histogram ttft_;
  prometheus::Histogram steps_;
  // Number of values already in the histograms.
  size_t ttft_seen_ = 0;
  size_t steps_seen_ = 0;
};

} // namespace hicache
