#pragma once

#include "gpu/device.hpp"
#include "gpu/queued_copy_engine.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace hicache {

/// The ways in which the CUDA device can copy, the better one of each io_backend first.
/// - batched: runs of bytes by the copy hardware, many in one call. From CUDA 12.8 on.
/// - single: the same with a call for each run.
/// - bulk, words: kernels (gpu/copy_kernels.hpp).
enum class cuda_copy_method : uint8_t { batched, single, bulk, words };

/// @relates cuda_copy_method
const char* to_string(cuda_copy_method method) noexcept;

/// The methods of an io_backend, in the order in which they are tried.
std::span<const cuda_copy_method> methods_of(io_backend io) noexcept;

/// Copies on two streams of its own, one for each direction, in the way named. Loads have an event
/// for each layer; copies wait for what fences() has for their pages.
/// @param device Its number.
/// @param l2_data The memory of l2: pinned, at the same address for the GPU.
/// @pre l1.check() succeeds and both pools have the same shape
/// @returns unsupported if the device or driver cannot copy in this way or not on so many SMs,
/// copy_failed if a call to set it up failed.
result<std::unique_ptr<page_mover>> make_cuda_mover(int device, const device_layers& l1,
                                                    const pool_geometry& l2, std::byte* l2_data,
                                                    const copy_options& options,
                                                    cuda_copy_method method);

/// The first mover of options.io that can be made and proves itself on small pools of the same
/// shape and layout.
/// @returns unsupported with the reason of the last one
result<std::unique_ptr<page_mover>> make_proven_cuda_mover(int device, const device_layers& l1,
                                                           const pool_geometry& l2,
                                                           std::byte* l2_data,
                                                           const copy_options& options);

} // namespace hicache
