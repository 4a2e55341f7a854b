#include "base/try.hpp"
#include "launch/transfer_cuda.hpp"

#include <cuda_runtime.h>

#include <utility>

namespace hicache {

namespace {

constexpr int device_number = 0;

/// Converts the status of a runtime call into a result.
result<void> check(const char* call, cudaError_t status) {
  if (status != cudaSuccess)
    return fail(ec::copy_failed, std::string{call} + ": " + cudaGetErrorString(status));
  return {};
}

/// Keeps the SM busy for `nanoseconds`.
__global__ void spin(uint64_t nanoseconds) {
  auto begin = uint64_t{0};
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  for (auto now = begin; now - begin < nanoseconds;)
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
}

class cuda_probe final : public transfer_probe {
public:
  explicit cuda_probe(probe_target target) : target_(std::move(target)) {}

  ~cuda_probe() override {
    // Fails only during process exit, when the driver is gone.
    if (stream_ != nullptr)
      static_cast<void>(cudaStreamDestroy(stream_));
  }

  result<void> open() {
    HICACHE_TRY(check("cudaSetDevice", cudaSetDevice(device_number)));
    HICACHE_TRY(
      check("cudaDeviceGetAttribute",
            cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, device_number)));
    return check("cudaStreamCreateWithFlags",
                 cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }

  result<double> copy_whole(copy_direction direction) override {
    const auto storing = direction == copy_direction::store;
    const auto begin = std::chrono::steady_clock::now();
    HICACHE_TRY(
      check("cudaMemcpyAsync",
            cudaMemcpyAsync(storing ? target_.l2 : target_.l1, storing ? target_.l1 : target_.l2,
                            target_.bytes, cudaMemcpyDefault, stream_)));
    return finish(begin);
  }

  result<double> copy_by_page(copy_direction direction) override {
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& strip : target_.strips)
      for (auto i = size_t{0}; i < target_.l1_pages.size(); ++i)
        HICACHE_TRY(copy_page(direction, strip, target_.l1_pages[i], target_.l2_pages[i]));
    return finish(begin);
  }

  result<void> compute(const layer_progress& progress,
                       std::chrono::nanoseconds per_layer) override {
    for (auto layer = uint32_t{0}; layer < progress.layers(); ++layer) {
      if (auto* event = progress.event(layer); event != nullptr) {
        HICACHE_TRY(check("cudaStreamWaitEvent",
                          cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(event))));
      } else if (!progress.wait(layer)) {
        return fail(ec::copy_failed, "the load under the computation failed");
      }
      spin<<<static_cast<unsigned>(sms_), 1, 0, stream_>>>(
        static_cast<uint64_t>(per_layer.count()));
      HICACHE_TRY(check("the launch of the computation", cudaGetLastError()));
    }
    HICACHE_TRY(check("cudaStreamSynchronize", cudaStreamSynchronize(stream_)));
    if (progress.failed())
      return fail(ec::copy_failed, "the load under the computation failed");
    return {};
  }

private:
  /// A single call: one contiguous copy, or strided rows.
  result<void> copy_page(copy_direction direction, const copy_strip& strip, page_index l1_page,
                         page_index l2_page) {
    const auto storing = direction == copy_direction::store;
    auto* l1 = reinterpret_cast<void*>(strip.device_address + l1_page * strip.device_page_stride);
    auto* l2 = reinterpret_cast<void*>(strip.host_address + l2_page * strip.host_page_stride);
    auto* to = storing ? l2 : l1;
    auto* from = storing ? l1 : l2;
    if (strip.rows == 1)
      return check("cudaMemcpyAsync",
                   cudaMemcpyAsync(to, from, strip.row_bytes, cudaMemcpyDefault, stream_));
    return check("cudaMemcpy2DAsync",
                 cudaMemcpy2DAsync(to, storing ? strip.host_row_stride : strip.device_row_stride,
                                   from, storing ? strip.device_row_stride : strip.host_row_stride,
                                   strip.row_bytes, strip.rows, cudaMemcpyDefault, stream_));
  }

  result<double> finish(std::chrono::steady_clock::time_point begin) {
    HICACHE_TRY(check("cudaStreamSynchronize", cudaStreamSynchronize(stream_)));
    return seconds_since(begin);
  }

  probe_target target_;
  cudaStream_t stream_ = nullptr;
  int sms_ = 1;
};

} // namespace

result<std::unique_ptr<transfer_probe>> make_cuda_probe(probe_target target) {
  auto probe = std::make_unique<cuda_probe>(std::move(target));
  HICACHE_TRY(probe->open());
  return probe;
}

} // namespace hicache
