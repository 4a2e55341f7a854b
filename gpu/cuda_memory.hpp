#pragma once

#include "base/immovable.hpp"
#include "gpu/device.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

/// Memory of a CUDA device, and conversion of CUDA runtime errors to results.
namespace hicache {

/// Converts the status of a runtime call to a result: "call: description of the status".
result<void> check_cuda(ec code, std::string_view call, cudaError_t status);

/// Makes the device current for the calling thread permanently. For our own threads: afterwards
/// their calls do not disturb an engine that captures a graph.
result<void> use_cuda_device(ec code, int device);

/// Makes a device current for the calling thread, which may be the engine's, until the end of the
/// scope; then restores the previous one.
class cuda_device_scope : immovable {
public:
  explicit cuda_device_scope(int device) noexcept;

  ~cuda_device_scope();

  result<void> check(ec code) const;

private:
  int previous_ = 0;
  cudaError_t status_ = cudaSuccess;
  bool is_changed_ = false;
};

/// Handle and size of shared CUDA memory, as named by share().
struct cuda_share {
  cudaIpcMemHandle_t handle{};
  uint64_t bytes = 0;
};

/// "cuda-ipc", the handle as 128 lower-case hexadecimal digits, the decimal size; single spaces.
/// @relates cuda_share
std::string to_string(const cuda_share& share);

/// Parses exactly the output of to_string().
/// @returns invalid_argument
/// @relates cuda_share
result<cuda_share> parse_cuda_share(std::string_view text);

/// Allocates zeroed L1 memory.
/// @param device_name For the description and errors.
result<std::unique_ptr<device_memory>> allocate_cuda_memory(int device, uint64_t bytes,
                                                            const std::string& device_name);

/// Opens L1 memory of another process; CUDA cannot open a process's own.
/// @returns invalid_argument, io_failure
result<std::unique_ptr<device_memory>> open_cuda_memory(int device, std::string_view shared);

/// Allocates L2 memory: a pinned host_mapping on the device's NUMA node. Kernels use its CPU
/// address.
/// @returns io_failure; unsupported on machines where the two addresses differ
result<std::unique_ptr<device_memory>> allocate_pinned_memory(int device, uint64_t bytes,
                                                              const host_memory_options& options);

/// The same with the caller's memory: host_mapping::adopt(), pinned while the object lives.
result<std::unique_ptr<device_memory>> adopt_pinned_memory(int device, std::span<std::byte> memory,
                                                           const host_memory_options& options);

} // namespace hicache
