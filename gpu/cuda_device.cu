#include "base/check.hpp"
#include "base/numbers.hpp"
#include "base/try.hpp"
#include "gpu/cuda_device.hpp"
#include "gpu/cuda_memory.hpp"
#include "gpu/cuda_mover.hpp"
#include "gpu/queued_copy_engine.hpp"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <utility>

namespace hicache {

namespace {

class cuda_device final : public device {
public:
  cuda_device(int number, std::string name) : number_(number), name_(std::move(name)) {}

  std::string name() const override { return name_; }

  bool host_addressable() const noexcept override { return false; }

  result<std::unique_ptr<device_memory>> allocate(uint64_t bytes) override {
    return allocate_cuda_memory(number_, bytes, name_);
  }

  result<std::unique_ptr<device_memory>> open(std::string_view shared) override {
    return open_cuda_memory(number_, shared);
  }

  result<std::unique_ptr<device_memory>>
  allocate_host(uint64_t bytes, const host_memory_options& options) override {
    return allocate_pinned_memory(number_, bytes, options);
  }

  result<std::unique_ptr<device_memory>> adopt_host(std::span<std::byte> memory,
                                                    const host_memory_options& options) override {
    return adopt_pinned_memory(number_, memory, options);
  }

  result<std::unique_ptr<copy_engine>> make_copy_engine(const device_layers& l1,
                                                        const pool_geometry& l2,
                                                        device_memory& l2_memory,
                                                        const copy_options& options) override {
    HICACHE_CHECK(l1.check() && l1.shape == l2.shape());
    HICACHE_CHECK(l2.total_bytes() <= l2_memory.size());
    auto mover = HICACHE_TRY(make_proven_cuda_mover(number_, l1, l2, l2_memory.data(), options));
    return make_queued_copy_engine(l1.pages, l2.pages(), l2.shape().layers, std::move(mover),
                                   options.inline_copies);
  }

  result<void> wait_for_layer(const layer_progress& progress, void* stream,
                              uint32_t layer) override {
    // The event belongs to the stream's device, whatever the thread's current device is.
    if (auto* const event = static_cast<cudaEvent_t>(progress.event(layer)); event != nullptr)
      return check_cuda(ec::copy_failed, "cudaStreamWaitEvent",
                        cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0));
    if (progress.failed())
      return fail(ec::copy_failed, "the load failed");
    return {};
  }

private:
  int number_;
  std::string name_;
};

/// This process's rank on this machine, as set by Open MPI or torchrun.
std::optional<uint32_t> local_rank() {
  const auto* text = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  if (text == nullptr)
    text = std::getenv("LOCAL_RANK");
  return text != nullptr ? parse_number<uint32_t>(text) : std::nullopt;
}

/// The device that owns the memory at this address.
result<int> device_of(uint64_t pool) {
  auto attributes = cudaPointerAttributes{};
  HICACHE_TRY(
    check_cuda(ec::unsupported, "cudaPointerGetAttributes",
               cudaPointerGetAttributes(&attributes, reinterpret_cast<const void*>(pool))));
  if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
    return fail(ec::unsupported, "the registered pool is not memory of a CUDA device");
  return attributes.device;
}

result<int> choose_device(int count, std::optional<uint32_t> wanted, uint64_t pool) {
  if (wanted && *wanted >= static_cast<uint32_t>(count))
    return fail(ec::invalid_argument, "there is no CUDA device " + std::to_string(*wanted)
                                        + "; expected 0 to " + std::to_string(count - 1));
  if (pool != 0) {
    auto lies = device_of(pool);
    if (lies && wanted && static_cast<uint32_t>(*lies) != *wanted)
      return fail(ec::invalid_argument, "the registered pool lies on CUDA device "
                                          + std::to_string(*lies) + ", not on device "
                                          + std::to_string(*wanted));
    return lies;
  }
  if (wanted)
    return static_cast<int>(*wanted);
  if (const auto rank = local_rank())
    return static_cast<int>(*rank % static_cast<uint32_t>(count));
  auto current = 0;
  HICACHE_TRY(check_cuda(ec::unsupported, "cudaGetDevice", cudaGetDevice(&current)));
  return current;
}

} // namespace

result<std::unique_ptr<device>> make_cuda_device(std::optional<uint32_t> wanted, uint64_t pool) {
  auto count = 0;
  HICACHE_TRY(check_cuda(ec::unsupported, "no CUDA device can be used: cudaGetDeviceCount",
                         cudaGetDeviceCount(&count)));
  if (count == 0)
    return fail(ec::unsupported, "no CUDA device can be used: the driver offers none");
  const auto number = HICACHE_TRY(choose_device(count, wanted, pool));
  auto properties = cudaDeviceProp{};
  HICACHE_TRY(check_cuda(ec::unsupported, "no CUDA device can be used: cudaGetDeviceProperties",
                         cudaGetDeviceProperties(&properties, number)));
  auto name = std::string{properties.name};
  if (count > 1)
    name += ", device " + std::to_string(number);
  return std::make_unique<cuda_device>(number, std::move(name));
}

} // namespace hicache
