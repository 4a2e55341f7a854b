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

/// "what: what the runtime says about the status".
tl::unexpected<error> cuda_failure(ec code, const std::string& what, cudaError_t status);

/// Turns the status of one runtime call into a result.
result<void> check_cuda(ec code, const char* call, cudaError_t status);

/// Makes the device the current one of the calling thread for good: for threads of ours. What such
/// a thread calls does not disturb an engine that captures a graph.
result<void> use_cuda_device(ec code, int device);

/// Has the calling thread, which may be the engine's, use a device until the end of the scope: its
/// own current device comes back then.
class cuda_device_scope {
public:
  explicit cuda_device_scope(int device) noexcept;

  cuda_device_scope(const cuda_device_scope&) = delete;

  cuda_device_scope& operator=(const cuda_device_scope&) = delete;

  ~cuda_device_scope();

  /// Whether the device can be used.
  result<void> check(ec code) const;

private:
  int previous_ = 0;
  cudaError_t status_ = cudaSuccess;
  bool is_changed_ = false;
};

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
result<std::unique_ptr<device_memory>> allocate_cuda_memory(int device, uint64_t bytes,
                                                            const std::string& device_name);

/// L1 memory of another process. Not of this one: CUDA opens only what others made.
/// @returns invalid_argument, io_failure
result<std::unique_ptr<device_memory>> open_cuda_memory(int device, std::string_view shared);

/// L2 memory: a host_mapping on the NUMA node of the device, pinned, which kernels reach at its CPU
/// address.
/// @returns io_failure; unsupported on machines where the two addresses differ
result<std::unique_ptr<device_memory>> allocate_pinned_memory(int device, uint64_t bytes,
                                                              const host_memory_options& options);

/// The same in memory of the caller's: host_mapping::adopt(), pinned while the object lives.
result<std::unique_ptr<device_memory>> adopt_pinned_memory(int device, std::span<std::byte> memory,
                                                           const host_memory_options& options);

} // namespace hicache
