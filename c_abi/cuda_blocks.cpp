#include "base/immovable.hpp"
#include "base/try.hpp"
#include "c_abi/block_device.hpp"

#include <cuda.h>

#include <dlfcn.h>

#include <string>
#include <utility>

namespace hicache {

namespace {

/// The functions used of the CUDA driver. The library also works without a driver.
struct cuda_driver {
  /// A function, as what its user takes it for.
  struct symbol {
    void* address = nullptr;

    template <class Function>
    operator Function*() const noexcept {
      return reinterpret_cast<Function*>(address);
    }
  };

  symbol find(const char* name) {
    const auto found = symbol{::dlsym(library, name)};
    is_whole = is_whole && found.address != nullptr;
    return found;
  }

  void* library = nullptr;
  /// Whether all functions were found.
  bool is_whole = true;
  decltype(&cuInit) init = find("cuInit");
  decltype(&cuGetErrorString) error_string = find("cuGetErrorString");
  decltype(&cuDeviceGet) device_get = find("cuDeviceGet");
  decltype(&cuDevicePrimaryCtxRetain) retain = find("cuDevicePrimaryCtxRetain");
  decltype(&cuDevicePrimaryCtxRelease) release = find("cuDevicePrimaryCtxRelease_v2");
  decltype(&cuCtxPushCurrent) push = find("cuCtxPushCurrent_v2");
  decltype(&cuCtxPopCurrent) pop = find("cuCtxPopCurrent_v2");
  decltype(&cuStreamCreate) stream_create = find("cuStreamCreate");
  decltype(&cuStreamDestroy) stream_destroy = find("cuStreamDestroy_v2");
  decltype(&cuStreamSynchronize) stream_synchronize = find("cuStreamSynchronize");
  decltype(&cuStreamWaitEvent) stream_wait = find("cuStreamWaitEvent");
  decltype(&cuEventCreate) event_create = find("cuEventCreate");
  decltype(&cuEventDestroy) event_destroy = find("cuEventDestroy_v2");
  decltype(&cuEventRecord) event_record = find("cuEventRecord");
  decltype(&cuEventSynchronize) event_synchronize = find("cuEventSynchronize");
  decltype(&cuMemcpyDtoHAsync) copy_to_host = find("cuMemcpyDtoHAsync_v2");
  decltype(&cuMemcpyHtoDAsync) copy_to_device = find("cuMemcpyHtoDAsync_v2");
};

result<cuda_driver> load_driver() {
  // Never closed, because the driver has threads of its own.
  auto* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return fail(ec::unsupported, "there is no CUDA driver; expected libcuda.so.1");
  const auto cuda = cuda_driver{library};
  if (!cuda.is_whole)
    return fail(ec::unsupported, "the CUDA driver is too old");
  return cuda;
}

CUdeviceptr address_of(const void* memory) {
  return reinterpret_cast<CUdeviceptr>(memory);
}

/// A device's primary context, and calls in it.
class cuda_context : immovable {
public:
  cuda_context(const cuda_driver& cuda, CUdevice device, CUcontext context)
    : cuda_(cuda), device_(device), context_(context) {}

  ~cuda_context() { cuda_.release(device_); }

  /// Calls body() in the context and reports a failure with the name of the call.
  template <class Body>
  result<void> run(const char* name, Body body) const {
    auto status = cuda_.push(context_);
    if (status == CUDA_SUCCESS) {
      status = body();
      auto* ours = CUcontext{nullptr};
      cuda_.pop(&ours);
    }
    if (status == CUDA_SUCCESS)
      return {};
    const auto* text = static_cast<const char*>(nullptr);
    cuda_.error_string(status, &text);
    return fail(ec::io_failure,
                std::string{"CUDA: "} + name + ": " + (text != nullptr ? text : "failed"));
  }

  const cuda_driver& cuda() const noexcept { return cuda_; }

private:
  const cuda_driver cuda_;
  const CUdevice device_;
  const CUcontext context_;
};

/// Blocks in the memory of a CUDA device, in its primary context, which the CUDA runtime shares.
/// Copies run on two private streams, one per direction.
class cuda_blocks final : public block_device {
public:
  explicit cuda_blocks(std::shared_ptr<const cuda_context> context)
    : context_(std::move(context)) {}

  ~cuda_blocks() override {
    static_cast<void>(context_->run("cuStreamDestroy", [this] {
      for (auto* stream : {stores_, loads_})
        if (stream != nullptr)
          cuda().stream_destroy(stream);
      return CUDA_SUCCESS;
    }));
  }

  result<void> open() {
    return context_->run("cuStreamCreate", [this] {
      const auto status = cuda().stream_create(&stores_, CU_STREAM_NON_BLOCKING);
      return status != CUDA_SUCCESS ? status
                                    : cuda().stream_create(&loads_, CU_STREAM_NON_BLOCKING);
    });
  }

  result<void> wait_for(void* event) override {
    return context_->run("cuStreamWaitEvent", [&] {
      return cuda().stream_wait(stores_, static_cast<CUevent>(event), 0);
    });
  }

  result<void> store(std::span<const std::span<const std::byte>> parts,
                     std::span<std::byte> page) override {
    return context_->run("cuMemcpyDtoHAsync", [&] {
      auto status = CUDA_SUCCESS;
      auto* to = page.data();
      for (auto part = parts.begin(); part != parts.end() && status == CUDA_SUCCESS; ++part) {
        status = cuda().copy_to_host(to, address_of(part->data()), part->size(), stores_);
        to += part->size();
      }
      // Also after a failure: queued copies must not write any more.
      const auto finished = cuda().stream_synchronize(stores_);
      return status != CUDA_SUCCESS ? status : finished;
    });
  }

  result<void> queue_load(std::span<const std::byte> page,
                          std::span<const block_piece> pieces) override {
    return context_->run("cuMemcpyHtoDAsync", [&] {
      for (const auto& piece : pieces)
        if (const auto status = cuda().copy_to_device(
              address_of(piece.address), page.data() + piece.offset, piece.bytes, loads_);
            status != CUDA_SUCCESS) {
          cuda().stream_synchronize(loads_);
          return status;
        }
      return CUDA_SUCCESS;
    });
  }

  result<device_mark> mark() override {
    auto* event = CUevent{nullptr};
    const auto marked = context_->run("cuEventRecord", [&] {
      auto status = cuda().event_create(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC);
      if (status == CUDA_SUCCESS)
        status = cuda().event_record(event, loads_);
      if (status != CUDA_SUCCESS)
        cuda().stream_synchronize(loads_);
      return status;
    });
    // The driver keeps a destroyed event while a stream waits for it.
    auto mark = device_mark{event, [context = context_](void* made) {
                              if (made == nullptr)
                                return;
                              static_cast<void>(context->run("cuEventDestroy", [&] {
                                return context->cuda().event_destroy(static_cast<CUevent>(made));
                              }));
                            }};
    HICACHE_TRY(marked);
    return mark;
  }

  result<void> finish(const device_mark& mark) override {
    return context_->run("cuEventSynchronize", [&] {
      return cuda().event_synchronize(static_cast<CUevent>(mark.get()));
    });
  }

  result<void> have_wait(void* stream, const device_mark& mark) override {
    return context_->run("cuStreamWaitEvent", [&] {
      return cuda().stream_wait(static_cast<CUstream>(stream), static_cast<CUevent>(mark.get()), 0);
    });
  }

private:
  const cuda_driver& cuda() const noexcept { return context_->cuda(); }

  const std::shared_ptr<const cuda_context> context_;
  CUstream stores_ = nullptr;
  CUstream loads_ = nullptr;
};

} // namespace

result<std::unique_ptr<block_device>> open_block_device(int32_t number) {
  const auto cuda = HICACHE_TRY(load_driver());
  auto device = CUdevice{};
  if (cuda.init(0) != CUDA_SUCCESS || cuda.device_get(&device, number) != CUDA_SUCCESS)
    return fail(ec::unsupported, "the CUDA driver offers no such device");
  auto* primary = CUcontext{nullptr};
  if (cuda.retain(&primary, device) != CUDA_SUCCESS)
    return fail(ec::io_failure, "CUDA: cuDevicePrimaryCtxRetain failed");
  auto made
    = std::make_unique<cuda_blocks>(std::make_shared<const cuda_context>(cuda, device, primary));
  HICACHE_TRY(made->open());
  return made;
}

} // namespace hicache
