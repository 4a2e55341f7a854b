#include "examples/llama/cuda_kernels.hpp"

namespace llama {

namespace {

constexpr auto block_threads = uint32_t{128};

/// A team of the threads of a block.
struct thread_block {
  float* scratch;

  template <class Body>
  __device__ void each(size_t count, Body body) const {
    for (auto i = size_t{threadIdx.x}; i < count; i += block_threads)
      body(i);
    __syncthreads();
  }

  template <class Number, class Value, class Operation>
  __device__ Number combine(size_t count, Number mine, Value value, Operation with) const {
    __shared__ Number parts[block_threads];
    for (auto i = size_t{threadIdx.x}; i < count; i += block_threads)
      mine = with(mine, value(i));
    parts[threadIdx.x] = mine;
    __syncthreads();
    for (auto half = block_threads / 2; half > 0; half /= 2) {
      if (threadIdx.x < half)
        parts[threadIdx.x] = with(parts[threadIdx.x], parts[threadIdx.x + half]);
      __syncthreads();
    }
    const auto whole = parts[0];
    __syncthreads(); // Before anyone writes to it again.
    return whole;
  }
};

template <class Kernel>
__global__ void compute_part(Kernel what) {
  extern __shared__ float scratch[];
  what(thread_block{scratch}, blockIdx.x);
}

} // namespace

cudaError_t launch(const kernel& what, size_t count, cudaStream_t stream) {
  std::visit(
    [&](const auto& each) {
      auto scratch = size_t{0};
      if constexpr (requires { each.scratch(); })
        scratch = each.scratch() * sizeof(float);
      compute_part<<<static_cast<uint32_t>(count), block_threads, scratch, stream>>>(each);
    },
    what);
  return cudaGetLastError();
}

} // namespace llama
