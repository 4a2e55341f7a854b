#include "base/check.hpp"
#include "gpu/cuda_device.hpp"
#include "gpu/cuda_memory.hpp"
#include "gpu/cuda_mover.hpp"
#include "gpu/queued_copy_engine.hpp"

#include <cuda_runtime_api.h>

#include <string>
#include <utility>

namespace hicache {

namespace {

class cuda_device final : public device {
public:
  explicit cuda_device(std::string name) : name_(std::move(name)) {}

  std::string name() const override { return name_; }

  bool host_addressable() const noexcept override { return false; }

  result<std::unique_ptr<device_memory>> allocate(uint64_t bytes) override {
    return allocate_cuda_memory(bytes, name_);
  }

  result<std::unique_ptr<device_memory>> open(std::string_view shared) override {
    return open_cuda_memory(shared);
  }

  result<std::unique_ptr<device_memory>>
  allocate_host(uint64_t bytes, const host_memory_options& options) override {
    return allocate_pinned_memory(bytes, options);
  }

  result<std::unique_ptr<device_memory>> adopt_host(std::span<std::byte> memory,
                                                    const host_memory_options& options) override {
    return adopt_pinned_memory(memory, options);
  }

  result<std::unique_ptr<copy_engine>> make_copy_engine(const device_layers& l1,
                                                        const pool_geometry& l2,
                                                        device_memory& l2_memory,
                                                        const copy_options& options) override {
    HICACHE_CHECK(l1.check() && l1.shape == l2.shape());
    HICACHE_CHECK(l2.total_bytes() <= l2_memory.size());
    auto mover = make_proven_cuda_mover(l1, l2, l2_memory.data(), options);
    if (!mover)
      return tl::unexpected{mover.error()};
    return make_queued_copy_engine(l1.pages, l2.pages(), l2.shape().layers, std::move(*mover),
                                   options.inline_copies);
  }

private:
  std::string name_;
};

} // namespace

result<std::unique_ptr<device>> make_cuda_device() {
  auto count = 0;
  if (auto asked = check_cuda(ec::unsupported, "no CUDA device can be used: cudaGetDeviceCount",
                              cudaGetDeviceCount(&count));
      !asked)
    return tl::unexpected{asked.error()};
  if (count == 0)
    return fail(ec::unsupported, "no CUDA device can be used: the driver offers none");
  auto properties = cudaDeviceProp{};
  if (auto asked
      = check_cuda(ec::unsupported, "no CUDA device can be used: cudaGetDeviceProperties",
                   cudaGetDeviceProperties(&properties, cuda_device_number));
      !asked)
    return tl::unexpected{asked.error()};
  return std::make_unique<cuda_device>(properties.name);
}

} // namespace hicache
