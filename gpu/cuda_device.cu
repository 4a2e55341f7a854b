#include "base/check.hpp"
#include "base/units.hpp"
#include "gpu/copy_plan.hpp"
#include "gpu/cuda_device.hpp"
#include "gpu/host_memory.hpp"
#include "gpu/queued_copy_engine.hpp"

#include <cuda_runtime.h>

#include <utility>
#include <vector>

namespace hicache {

namespace {

constexpr int device_number = 0;

tl::unexpected<error> cuda_failure(ec code, const char* call, cudaError_t status) {
  return fail(code, std::string{call} + ": " + cudaGetErrorString(status));
}

/// Turns the status of one runtime call into a result.
result<void> check_copy(const char* call, cudaError_t status) {
  if (status != cudaSuccess)
    return cuda_failure(ec::copy_failed, call, status);
  return {};
}

enum class memory_side { device, host };

class cuda_memory final : public device_memory {
public:
  cuda_memory(void* address, uint64_t bytes, memory_side side)
    : data_(static_cast<std::byte*>(address)), size_(bytes), side_(side) {}

  ~cuda_memory() override {
    // Fails only while the process ends and the driver is gone; the memory goes with it.
    static_cast<void>(side_ == memory_side::device ? cudaFree(data_) : cudaFreeHost(data_));
  }

  std::byte* data() noexcept override { return data_; }

  uint64_t size() const noexcept override { return size_; }

  result<void> write(uint64_t offset, std::span<const std::byte> bytes) override {
    HICACHE_CHECK(offset <= size_ && bytes.size() <= size_ - offset);
    return copy(data_ + offset, bytes.data(), bytes.size());
  }

  result<void> read(uint64_t offset, std::span<std::byte> bytes) const override {
    HICACHE_CHECK(offset <= size_ && bytes.size() <= size_ - offset);
    return copy(bytes.data(), data_ + offset, bytes.size());
  }

private:
  static result<void> copy(void* to, const void* from, size_t bytes) {
    if (auto bound = check_copy("cudaSetDevice", cudaSetDevice(device_number)); !bound)
      return bound;
    if (auto copied = check_copy("cudaMemcpy", cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
        !copied)
      return copied;
    // cudaMemcpy from pageable memory may return before the last bytes are on the device.
    return check_copy("cudaStreamSynchronize", cudaStreamSynchronize(nullptr));
  }

  std::byte* data_;
  uint64_t size_;
  memory_side side_;
};

/// One direction: a stream, and an event for each layer.
class copy_stream {
public:
  copy_stream() = default;
  copy_stream(const copy_stream&) = delete;
  copy_stream& operator=(const copy_stream&) = delete;

  ~copy_stream() {
    for (auto* event : events_)
      static_cast<void>(cudaEventDestroy(event));
    if (stream_ != nullptr)
      static_cast<void>(cudaStreamDestroy(stream_));
  }

  result<void> open(uint32_t layers) {
    if (auto opened = check_copy("cudaStreamCreateWithFlags",
                                 cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        !opened)
      return opened;
    while (events_.size() < layers) {
      auto* event = cudaEvent_t{nullptr};
      if (auto made = check_copy(
            "cudaEventCreateWithFlags",
            cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
          !made)
        return made;
      events_.push_back(event);
    }
    return {};
  }

  result<void> copy(std::byte* to, uint64_t to_stride, const std::byte* from, uint64_t from_stride,
                    const row_copy& copy) {
    return check_copy("cudaMemcpy2DAsync",
                      cudaMemcpy2DAsync(to, to_stride, from, from_stride, copy.row_bytes, copy.rows,
                                        cudaMemcpyDefault, stream_));
  }

  result<void> mark(uint32_t layer) {
    return check_copy("cudaEventRecord", cudaEventRecord(events_[layer], stream_));
  }

  result<void> wait(uint32_t layer) {
    return check_copy("cudaEventSynchronize", cudaEventSynchronize(events_[layer]));
  }

  /// After a failure: whatever was queued must not write to the pages any more.
  void settle() { static_cast<void>(cudaStreamSynchronize(stream_)); }

private:
  cudaStream_t stream_ = nullptr;
  std::vector<cudaEvent_t> events_;
};

class cuda_mover final : public page_mover {
public:
  cuda_mover(const pool_geometry& l1, std::byte* l1_data, const pool_geometry& l2,
             std::byte* l2_data)
    : l1_(l1), l2_(l2), l1_data_(l1_data), l2_data_(l2_data) {}

  result<void> open() {
    if (auto opened = stores_.open(l1_.shape().layers); !opened)
      return opened;
    return loads_.open(l1_.shape().layers);
  }

  result<void> store(std::span<const page_index> device_pages,
                     std::span<const page_index> host_pages) override {
    const auto issue = [this](const row_copy& copy) {
      return stores_.copy(l2_data_ + copy.host_offset, copy.host_stride,
                          l1_data_ + copy.device_offset, copy.device_stride, copy);
    };
    return run(stores_, device_pages, host_pages, issue, [](uint32_t) {});
  }

  result<void> load(std::span<const page_index> host_pages,
                    std::span<const page_index> device_pages,
                    const layer_callback& arrived) override {
    const auto issue = [this](const row_copy& copy) {
      return loads_.copy(l1_data_ + copy.device_offset, copy.device_stride,
                         l2_data_ + copy.host_offset, copy.host_stride, copy);
    };
    return run(loads_, device_pages, host_pages, issue, arrived);
  }

private:
  /// Queues the copies of all layers, then reports them as they arrive.
  template <class Issue>
  result<void> run(copy_stream& stream, std::span<const page_index> device_pages,
                   std::span<const page_index> host_pages, Issue issue,
                   const layer_callback& arrived) {
    auto done = queue_layers(stream, device_pages, host_pages, issue);
    for (auto layer = uint32_t{0}; done && layer < l1_.shape().layers; ++layer) {
      done = stream.wait(layer);
      if (done)
        arrived(layer + 1);
    }
    if (!done)
      stream.settle();
    return done;
  }

  template <class Issue>
  result<void> queue_layers(copy_stream& stream, std::span<const page_index> device_pages,
                            std::span<const page_index> host_pages, Issue issue) {
    // The current device belongs to the thread.
    if (auto bound = check_copy("cudaSetDevice", cudaSetDevice(device_number)); !bound)
      return bound;
    auto copies = std::vector<row_copy>{};
    for (auto layer = uint32_t{0}; layer < l1_.shape().layers; ++layer) {
      plan_layer_copy(l1_, l2_, layer, device_pages, host_pages, copies);
      for (const auto& copy : copies)
        if (auto issued = issue(copy); !issued)
          return issued;
      if (auto marked = stream.mark(layer); !marked)
        return marked;
    }
    return {};
  }

  pool_geometry l1_;
  pool_geometry l2_;
  std::byte* l1_data_;
  std::byte* l2_data_;
  copy_stream stores_;
  copy_stream loads_;
};

class cuda_device final : public device {
public:
  cuda_device(std::string name, copy_threads threads) : name_(std::move(name)), threads_(threads) {}

  std::string name() const override { return name_; }

  bool host_addressable() const noexcept override { return false; }

  result<std::unique_ptr<device_memory>> allocate(uint64_t bytes) override {
    HICACHE_CHECK(bytes > 0);
    if (auto bound = check_copy("cudaSetDevice", cudaSetDevice(device_number)); !bound)
      return tl::unexpected{bound.error()};
    auto* address = static_cast<void*>(nullptr);
    const auto status = cudaMalloc(&address, bytes);
    if (status == cudaSuccess)
      return std::make_unique<cuda_memory>(address, bytes, memory_side::device);
    auto available = size_t{0};
    auto total = size_t{0};
    static_cast<void>(cudaMemGetInfo(&available, &total));
    return cuda_failure(ec::io_failure,
                        ("cannot allocate " + format_bytes(bytes) + " on " + name_ + ", of which "
                         + format_bytes(available) + " are free: cudaMalloc")
                          .c_str(),
                        status);
  }

  result<std::unique_ptr<device_memory>> allocate_host(uint64_t bytes) override {
    HICACHE_CHECK(bytes > 0);
    if (auto checked = check_memory_available(bytes); !checked)
      return tl::unexpected{checked.error()};
    auto* address = static_cast<void*>(nullptr);
    const auto status = cudaHostAlloc(&address, bytes, cudaHostAllocPortable);
    if (status == cudaSuccess)
      return std::make_unique<cuda_memory>(address, bytes, memory_side::host);
    return cuda_failure(ec::io_failure,
                        ("cannot pin " + format_bytes(bytes) + " of memory: cudaHostAlloc").c_str(),
                        status);
  }

  result<std::unique_ptr<copy_engine>> make_copy_engine(const pool_geometry& l1,
                                                        device_memory& l1_memory,
                                                        const pool_geometry& l2,
                                                        device_memory& l2_memory) override {
    HICACHE_CHECK(l1.total_bytes() <= l1_memory.size() && l2.total_bytes() <= l2_memory.size());
    if (auto bound = check_copy("cudaSetDevice", cudaSetDevice(device_number)); !bound)
      return tl::unexpected{bound.error()};
    auto mover = std::make_unique<cuda_mover>(l1, l1_memory.data(), l2, l2_memory.data());
    if (auto opened = mover->open(); !opened)
      return tl::unexpected{opened.error()};
    return make_queued_copy_engine(l1, l2, std::move(mover), threads_);
  }

private:
  std::string name_;
  copy_threads threads_;
};

} // namespace

result<std::unique_ptr<device>> make_cuda_device(copy_threads threads) {
  auto count = 0;
  if (const auto status = cudaGetDeviceCount(&count); status != cudaSuccess)
    return cuda_failure(ec::unsupported, "no CUDA device can be used: cudaGetDeviceCount", status);
  if (count == 0)
    return fail(ec::unsupported, "no CUDA device can be used: the driver offers none");
  auto properties = cudaDeviceProp{};
  if (const auto status = cudaGetDeviceProperties(&properties, device_number);
      status != cudaSuccess)
    return cuda_failure(ec::unsupported, "no CUDA device can be used: cudaGetDeviceProperties",
                        status);
  return std::make_unique<cuda_device>(properties.name, threads);
}

} // namespace hicache
