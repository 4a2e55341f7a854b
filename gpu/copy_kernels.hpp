#pragma once

#include "cache/copy_strips.hpp"
#include "gpu/queued_copy_engine.hpp"
#include "hicache/error.hpp"
#include "hicache/geometry.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace hicache {

/// How the warps of a copy kernel move bytes.
/// - words: through registers, four words per thread in flight. Any GPU, any alignment.
/// - bulk: asynchronous bulk copies through shared memory, for strips of 16-byte words; other
///   strips as words. Needs compute capability 9.0; keeps whole pieces in flight without registers.
enum class kernel_method : uint8_t { words, bulk };

/// One launch: all pages of the lists, in all strips.
struct kernel_copy {
  copy_direction direction = copy_direction::store;
  /// These three are readable by the GPU.
  const copy_strip* strips = nullptr;
  const page_index* l1_pages = nullptr;
  const page_index* l2_pages = nullptr;
  uint64_t strip_count = 0;
  uint64_t pages = 0;
  /// Maximum of bundle_count() over the strips.
  uint64_t bundles = 0;
};

/// A warp copies bundles: as many consecutive pieces of a strip as fill piece_bytes, so that short
/// rows keep as many bytes in flight as long ones.
/// @returns the number of bundles in `pages` pages of the strip.
uint64_t bundle_count(const copy_strip& strip, uint64_t pages);

/// Prepares a method on the device. Call once before launches.
/// @returns unsupported if the device or this build's kernels lack it.
result<void> prepare_copy_kernel(kernel_method method);

/// Queues the kernel on `sms` SMs.
/// @returns copy_failed if it cannot be queued.
result<void> launch_copy_kernel(kernel_method method, const kernel_copy& copy, uint32_t sms,
                                cudaStream_t stream);

} // namespace hicache
