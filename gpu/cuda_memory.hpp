#pragma once

#include "gpu/device.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

/// Memory of the CUDA device, and how calls of the CUDA runtime become results.
namespace hicache {

/// The CUDA device of this process, in the numbering of the runtime.
inline constexpr int cuda_device_number = 0;

/// "what: what the runtime says about the status".
tl::unexpected<error> cuda_failure(ec code, const std::string& what, cudaError_t status);

/// Turns the status of one runtime call into a result.
result<void> check_cuda(ec code, const char* call, cudaError_t status);

/// Binds the calling thread to the device.
result<void> use_cuda_device(ec code);

/// How the text of share() names memory of a CUDA device.
struct cuda_share {
  cudaIpcMemHandle_t handle{};
  uint64_t bytes = 0;
};

/// "cuda-ipc", the handle as 128 lower-case hexadecimal digits, the bytes as a decimal number;
/// single spaces between them.
/// @relates cuda_share
std::string to_string(const cuda_share& share);

/// Reads exactly what to_string() writes.
/// @returns invalid_argument
/// @relates cuda_share
result<cuda_share> parse_cuda_share(std::string_view text);

/// L1 memory, zeroed.
/// @param device_name For the description and errors.
result<std::unique_ptr<device_memory>> allocate_cuda_memory(uint64_t bytes,
                                                            const std::string& device_name);

/// L1 memory of another process. Not of this one: CUDA opens only what others made.
/// @returns invalid_argument, io_failure
result<std::unique_ptr<device_memory>> open_cuda_memory(std::string_view shared);

/// L2 memory: a host_mapping on the NUMA node of the device, pinned, which kernels reach at its CPU
/// address.
/// @returns io_failure; unsupported on machines where the two addresses differ
result<std::unique_ptr<device_memory>> allocate_pinned_memory(uint64_t bytes,
                                                              const host_memory_options& options);

/// The same in memory of the caller's: host_mapping::adopt(), pinned while the object lives.
result<std::unique_ptr<device_memory>> adopt_pinned_memory(std::span<std::byte> memory,
                                                           const host_memory_options& options);

} // namespace hicache
