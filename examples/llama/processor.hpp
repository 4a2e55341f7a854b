#pragma once

#include "examples/llama/kernels.hpp"
#include "examples/llama/weights.hpp"
#include "hicache/operations.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <vector>

namespace llama {

/// What a transformer computes on. Operations run in order; they may return before they are done.
/// The first that fails makes the results of all later ones invalid; finish() says so.
class processor {
public:
  virtual ~processor() = default;

  /// Memory for rows, which the CPU may touch after finish() only.
  virtual std::pmr::memory_resource* memory() noexcept = 0;

  /// The numbers where the processor reads them; null if there are none. They must neither change
  /// nor move during the object's lifetime.
  virtual const float* place(const std::vector<float>& constants) = 0;

  /// output = input * weights^T, without the bias.
  /// @param stride Floats from an output row to the next.
  virtual void multiply(const linear_layer& layer, size_t rows, const float* input, float* output,
                        size_t stride)
    = 0;

  /// Computes the parts below `count` of a kernel.
  virtual void run(const kernel& what, size_t count) = 0;

  /// Later operations come after the load of a layer, whether it succeeds or not.
  virtual void wait_for(const hicache::layer_progress& loading, uint32_t layer) = 0;

  /// An event (cudaEvent_t) after which all operations so far are done, valid until the next call.
  /// Null: they are done.
  virtual void* mark() = 0;

  /// Blocks until all operations are done.
  virtual result<void> finish() = 0;
};

/// Computes by OpenBLAS.
std::unique_ptr<processor> make_cpu_processor();

/// Computes on a GPU.
/// @param pool An address in the GPU's memory: L1. The calling thread uses that GPU from now on.
/// @returns unsupported, also without CUDA and cuBLAS
result<std::unique_ptr<processor>> make_cuda_processor(uint64_t pool);

} // namespace llama
