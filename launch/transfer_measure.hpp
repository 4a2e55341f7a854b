#pragma once

#include "gpu/device.hpp"
#include "hicache/error.hpp"
#include "hicache/geometry.hpp"

#include <cstdint>
#include <string>

namespace hicache {

/// One way of copying whole pages between L1 and L2.
struct transfer_case {
  device_kind device = device_kind::automatic;
  pool_shape shape;
  host_layout layout = host_layout::page_first;
  copy_options copies;
  /// Copied by each submission; at least 1. Both pools hold so many, and the padding page.
  uint32_t pages = 32;
  /// The pages are named in a random order, as they are in a pool that has been in use for a
  /// while. Else in ascending order on both sides, so that neighbours can be joined.
  bool fragmented = false;
  /// How long to measure, at least nine rounds.
  double seconds = 1;
};

/// One direction. Rates are medians over the rounds, ratios medians of the ratios within a round.
struct direction_figures {
  double gib_per_s = 0;
  /// One copy of as many bytes in one piece: cudaMemcpyAsync between pinned and device memory, or
  /// memcpy by as many threads as the engine has.
  double baseline_gib_per_s = 0;
  double ratio = 0;
  /// One call of the device per page, layer and part; 0 where there is no such thing (host).
  double by_page_gib_per_s = 0;
  double by_page_ratio = 0;
};

/// What measure_transfer found.
struct transfer_figures {
  /// As device::name() says.
  std::string device;
  uint64_t page_bytes = 0;
  /// What was measured took so long, and so many rounds.
  double seconds = 0;
  uint32_t rounds = 0;
  direction_figures store;
  direction_figures load;
  /// Share of a load's time that disappears behind a computation that takes as long as the load
  /// and waits for it layer by layer: 1 - (both together - computation alone) / load alone.
  double overlap_hidden = 0;
  /// Copies that failed, and pages that did not come back from L2 as they went there.
  uint64_t errors = 0;
};

/// Checks that pages survive the way to L2 and back, then measures round by round: each round has
/// every measurement and every baseline once.
/// @pre what.shape fits its kind of attention, what.pages > 0
/// @returns the error of the device if it cannot be used, or of a baseline that failed
result<transfer_figures> measure_transfer(const transfer_case& what);

/// What getting L2 memory takes. Medians of seconds; ratios as above.
struct startup_figures {
  double seconds = 0;
  /// A new mapping pinned by a single call (CUDA), or touched by as many threads as the allocation
  /// uses (host).
  double baseline_seconds = 0;
  double ratio = 0;
  /// The same mapping touched by one thread.
  double one_thread_seconds = 0;
  double one_thread_ratio = 0;
  /// The kind of memory that was got.
  std::string memory;
};

/// Allocates L2 memory of so many bytes again and again, each time beside its baselines.
/// @returns the error of the device or of the system
result<startup_figures> measure_startup(device_kind kind, uint64_t bytes, double seconds);

/// The version of the CUDA driver; "none" for the host device and in builds without CUDA.
std::string driver_version(device_kind kind);

} // namespace hicache
