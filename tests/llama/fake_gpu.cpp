// What the engine's CUDA path calls besides the CUDA runtime, without a GPU: its kernels, each on
// one thread, and cuBLAS. Work is carried out when it is queued, as by fake_cuda.

#include "examples/llama/cuda_kernels.hpp"
#include "tests/gpu/fake_cuda/fake_cuda.hpp"

#include <cublas_v2.h>

#include <set>
#include <vector>

namespace llama {
namespace {

/// The pages of a layer that the rows use: up to the position of each, or only there.
template <class Kernel>
std::vector<fake_cuda::range> touched(const Kernel& what, size_t rows, bool up_to) {
  auto ranges = std::vector<fake_cuda::range>{};
  auto seen = std::set<hicache::page_index>{};
  for (auto row = size_t{0}; row < rows; ++row) {
    const auto& place = what.places[row];
    const auto last = place.position / what.pages.page_size;
    for (auto page = up_to ? 0 : last; page <= last; ++page)
      if (seen.insert(place.pages[page]).second)
        for (const auto& part : {what.pages.keys, what.pages.values})
          ranges.push_back({what.pages.head_at(part, place.pages, page * what.pages.page_size, 0),
                            part.token_stride * what.pages.page_size});
  }
  return ranges;
}

void note(const attention_kernel& what, size_t count, cudaStream_t stream) {
  fake_cuda::launch(stream, touched(what, count / what.shape.heads, true), {});
}

void note(const store_kernel& what, size_t count, cudaStream_t stream) {
  const auto heads = what.shape.heads + 2 * what.shape.kv_heads;
  fake_cuda::launch(stream, {}, touched(what, count / heads, false));
}

template <class Kernel>
void note(const Kernel&, size_t, cudaStream_t) {}

} // namespace

cudaError_t launch(const kernel& what, size_t count, cudaStream_t stream) {
  auto scratch = std::vector<float>(4096);
  std::visit(
    [&](const auto& each) {
      note(each, count, stream);
      for (auto index = size_t{0}; index < count; ++index)
        each(single_thread{scratch.data()}, index);
    },
    what);
  return cudaSuccess;
}

} // namespace llama

struct cublasContext {};

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t mode) {
  return mode == CUBLAS_PEDANTIC_MATH ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

const char* cublasGetStatusString(cublasStatus_t) {
  return "a failure";
}

/// By columns: c (m x n) = a^T * b, with a as k x m.
cublasStatus_t cublasSgemm_v2(cublasHandle_t, cublasOperation_t a_order, cublasOperation_t b_order,
                              int m, int n, int k, const float* alpha, const float* a, int a_stride,
                              const float* b, int b_stride, const float* beta, float* c,
                              int c_stride) {
  if (a_order != CUBLAS_OP_T || b_order != CUBLAS_OP_N || *alpha != 1 || *beta != 0)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  for (auto column = 0; column < n; ++column)
    for (auto row = 0; row < m; ++row) {
      auto sum = 0.0F;
      for (auto i = 0; i < k; ++i)
        sum += a[row * a_stride + i] * b[column * b_stride + i];
      c[column * c_stride + row] = sum;
    }
  return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
