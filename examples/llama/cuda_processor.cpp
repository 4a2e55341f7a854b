#include "base/try.hpp"
#include "examples/llama/cuda_kernels.hpp"
#include "examples/llama/processor.hpp"
#include "gpu/cuda_fences.hpp"

#include <cublas_v2.h>

#include <map>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

namespace llama {

namespace {

using hicache::check_cuda;

/// Memory that the CPU and the GPU use at the same addresses; pages move to who touches them.
class managed_memory final : public std::pmr::memory_resource {
  void* do_allocate(size_t bytes, size_t) override {
    void* memory = nullptr;
    if (cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal) != cudaSuccess)
      throw std::bad_alloc{};
    return memory;
  }

  void do_deallocate(void* memory, size_t, size_t) override { static_cast<void>(cudaFree(memory)); }

  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
};

class cuda_processor final : public processor {
public:
  explicit cuda_processor(int device) : device_(device) {
    note("cudaSetDevice", cudaSetDevice(device));
    auto* stream = cudaStream_t{nullptr};
    note("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    stream_.reset(stream);
    auto* event = cudaEvent_t{nullptr};
    note("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    event_.reset(event);
    auto* cublas = cublasHandle_t{nullptr};
    note(cublasCreate(&cublas));
    cublas_.reset(cublas);
    note(cublasSetStream(cublas, stream));
    // Products of floats as the CPU's: without TF32.
    note(cublasSetMathMode(cublas, CUBLAS_PEDANTIC_MATH));
  }

  std::pmr::memory_resource* memory() noexcept override { return &memory_; }

  const float* place(const std::vector<float>& constants) override {
    if (constants.empty())
      return nullptr;
    return copies_.try_emplace(constants.data(), constants.begin(), constants.end(), &memory_)
      .first->second.data();
  }

  void multiply(const linear_layer& layer, size_t rows, const float* input, float* output,
                size_t stride) override {
    const auto one = 1.0F;
    const auto zero = 0.0F;
    const auto inputs = static_cast<int>(layer.inputs);
    // cuBLAS takes matrices by columns, so it multiplies the transposed ones.
    note(cublasSgemm(cublas_.get(), CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(layer.outputs),
                     static_cast<int>(rows), inputs, &one, place(layer.weights), inputs, input,
                     inputs, &zero, output, static_cast<int>(stride)));
  }

  void run(const kernel& what, size_t count) override {
    note("a kernel", launch(what, count, stream_.get()));
  }

  void wait_for(const hicache::layer_progress& loading, uint32_t layer) override {
    if (auto* const event = loading.event(layer))
      note("cudaStreamWaitEvent",
           cudaStreamWaitEvent(stream_.get(), static_cast<cudaEvent_t>(event), 0));
  }

  void* mark() override {
    note("cudaEventRecord", cudaEventRecord(event_.get(), stream_.get()));
    return event_.get();
  }

  /// Also makes the device that of the calling thread, which may be another one than before.
  result<void> finish() override {
    note("cudaSetDevice", cudaSetDevice(device_));
    note("cudaStreamSynchronize", cudaStreamSynchronize(stream_.get()));
    return status_;
  }

private:
  void note(const char* call, cudaError_t status) {
    if (status_)
      status_ = check_cuda(ec::device_lost, call, status);
  }

  void note(cublasStatus_t status) {
    if (status_ && status != CUBLAS_STATUS_SUCCESS)
      status_ = fail(ec::device_lost, std::string{"cuBLAS: "} + cublasGetStatusString(status));
  }

  const int device_;
  result<void> status_;
  managed_memory memory_;
  std::map<const float*, std::pmr::vector<float>> copies_;
  hicache::unique_event event_;
  hicache::unique_stream stream_;
  std::unique_ptr<std::remove_pointer_t<cublasHandle_t>, decltype(&cublasDestroy)> cublas_{
    nullptr, &cublasDestroy};
};

} // namespace

result<std::unique_ptr<processor>> make_cuda_processor(uint64_t pool) {
  auto where = cudaPointerAttributes{};
  HICACHE_TRY(check_cuda(ec::unsupported, "cudaPointerGetAttributes",
                         cudaPointerGetAttributes(&where, reinterpret_cast<const void*>(pool))));
  auto shares_memory = 0;
  static_cast<void>(
    cudaDeviceGetAttribute(&shares_memory, cudaDevAttrConcurrentManagedAccess, where.device));
  if (shares_memory == 0)
    return fail(ec::unsupported, "the CPU cannot use this GPU's managed memory while it computes");
  auto made = std::make_unique<cuda_processor>(where.device);
  HICACHE_TRY(made->finish());
  return made;
}

} // namespace llama
