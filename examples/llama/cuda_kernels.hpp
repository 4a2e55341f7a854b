#pragma once

#include "examples/llama/kernels.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>

namespace llama {

/// Queues the parts below `count` of a kernel, each for a block of threads.
cudaError_t launch(const kernel& what, size_t count, cudaStream_t stream);

} // namespace llama
