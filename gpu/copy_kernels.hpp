#pragma once

#include "cache/copy_strips.hpp"
#include "gpu/queued_copy_engine.hpp"
#include "hicache/error.hpp"
#include "hicache/geometry.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace hicache {

/// How the warps of a copy kernel move bytes.
/// - words: through registers, eight words per thread in flight. Any GPU, any alignment.
/// - bulk: asynchronous bulk copies through shared memory, for strips of 16-byte words; the others
/// as words. From compute capability 9.0 on. The GPU's copy unit has whole pieces in flight, which
/// no register holds.
enum class kernel_method : uint8_t { words, bulk };

/// One launch: all pages of the lists, in all strips.
struct kernel_copy {
  copy_direction direction = copy_direction::store;
  /// These three point to memory that the GPU reads.
  const copy_strip* strips = nullptr;
  const page_index* l1_pages = nullptr;
  const page_index* l2_pages = nullptr;
  uint64_t strip_count = 0;
  uint64_t pages = 0;
  /// The largest value of bundle_count() over the strips.
  uint64_t bundles = 0;
};

/// A warp takes pieces in bundles: as many consecutive ones of a strip as fill one piece_bytes, so
/// that short rows keep as many bytes in flight as long ones.
/// @returns How many bundles `pages` pages of the strip are.
uint64_t bundle_count(const copy_strip& strip, uint64_t pages);

/// Makes a method ready on the device. Once before launches.
/// @returns unsupported if the device or this build's kernels cannot do it.
result<void> prepare_copy_kernel(kernel_method method);

/// Queues the kernel on `sms` SMs.
/// @returns copy_failed if it cannot be queued.
result<void> launch_copy_kernel(kernel_method method, const kernel_copy& copy, uint32_t sms,
                                cudaStream_t stream);

} // namespace hicache
