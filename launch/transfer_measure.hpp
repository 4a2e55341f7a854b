#pragma once

#include "gpu/device.hpp"
#include "hicache/error.hpp"
#include "hicache/geometry.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace hicache {

/// One configuration of copying whole pages between L1 and L2.
struct transfer_case {
  device_kind device = device_kind::automatic;
  pool_shape shape;
  host_layout layout = host_layout::page_first;
  copy_options copies;
  /// Pages per submission; at least 1. Each pool holds that many, plus the padding page.
  uint32_t pages = 32;
  /// True: pages are in random order, as in a pool that has been in use for a while. False:
  /// ascending order on both sides, so that neighbours can be merged.
  bool fragmented = false;
  /// Minimum measuring time; at least nine rounds are run.
  double seconds = 1;
};

/// One direction. Rates are medians over the rounds, ratios medians of the per-round ratios.
struct direction_figures {
  double gib_per_s = 0;
  /// One contiguous copy of the same size: cudaMemcpyAsync between pinned and device memory, or
  /// memcpy by as many threads as the engine uses.
  double baseline_gib_per_s = 0;
  double ratio = 0;
  /// One call of the device per page, layer and part; 0 on the host device, which has no such call.
  double by_page_gib_per_s = 0;
  double by_page_ratio = 0;
};

/// Result of measure_transfer.
struct transfer_figures {
  /// As device::name().
  std::string device;
  uint64_t page_bytes = 0;
  /// Measuring time and number of rounds.
  double seconds = 0;
  uint32_t rounds = 0;
  direction_figures store;
  direction_figures load;
  /// Share of a load's time hidden behind a computation of equal length that waits for it layer by
  /// layer: 1 - (both together - computation alone) / load alone.
  double overlap_hidden = 0;
  /// Failed copies, and pages that came back from L2 changed.
  uint64_t errors = 0;
};

/// Checks that pages survive the round trip to L2, then measures in rounds: each round runs every
/// measurement and every baseline once.
/// @pre what.shape fits its kind of attention, what.pages > 0
/// @returns the error of the device if it cannot be used, or of a baseline that failed
result<transfer_figures> measure_transfer(const transfer_case& what);

/// 0 without values.
double median(std::vector<double> values);

/// The median of a[i] / b[i].
double median_ratio(const std::vector<double>& a, const std::vector<double>& b);

} // namespace hicache
