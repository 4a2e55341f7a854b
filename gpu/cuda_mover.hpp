#pragma once

#include "gpu/device.hpp"
#include "gpu/queued_copy_engine.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace hicache {

/// Copy methods of a CUDA device, best one of each io_backend first.
/// - batched: contiguous runs by the copy engines, many per call. Needs CUDA 12.8.
/// - single: the same with one call per run.
/// - bulk, words: kernels (gpu/copy_kernels.hpp).
enum class cuda_copy_method : uint8_t { batched, single, bulk, words };

/// @relates cuda_copy_method
const char* to_string(cuda_copy_method method) noexcept;

/// The methods of an io_backend in the order of preference.
std::span<const cuda_copy_method> methods_of(io_backend io) noexcept;

/// Copies with this method on two private streams, one per direction. Loads have an event per
/// layer; copies wait for the fences() of their pages.
/// @param device Its number.
/// @param l2_data The memory of l2: pinned, at the same address for the GPU.
/// @pre l1.check() succeeds and both pools have the same shape
/// @returns unsupported if the method or that many SMs are missing, copy_failed if a call failed.
result<std::unique_ptr<page_mover>> make_cuda_mover(int device, const device_layers& l1,
                                                    const pool_geometry& l2, std::byte* l2_data,
                                                    const copy_options& options,
                                                    cuda_copy_method method);

/// The first mover of options.io that passes prove_mover on small pools of this shape and layout.
/// @returns unsupported with the reason of the last one
result<std::unique_ptr<page_mover>> make_proven_cuda_mover(int device, const device_layers& l1,
                                                           const pool_geometry& l2,
                                                           std::byte* l2_data,
                                                           const copy_options& options);

} // namespace hicache
