#pragma once

#include "gpu/device.hpp"
#include "hicache/error.hpp"

#include <cstdint>
#include <string>

/// What taking the memory of L2 costs.
namespace hicache {

/// Medians of seconds over the rounds; ratios are medians of the per-round ratios.
struct startup_figures {
  double seconds = 0;
  /// A new mapping pinned by a single call (CUDA), or touched by as many threads as the allocation
  /// uses (host).
  double baseline_seconds = 0;
  double ratio = 0;
  /// The same mapping touched by one thread.
  double one_thread_seconds = 0;
  double one_thread_ratio = 0;
};

/// Repeatedly allocates `bytes` of L2 memory, each time next to its baselines.
/// @returns the error of the device or of the system
result<startup_figures> measure_startup(device_kind kind, uint64_t bytes, double seconds);

/// The version of the CUDA driver; "none" for the host device and in builds without CUDA.
std::string driver_version(device_kind kind);

} // namespace hicache
