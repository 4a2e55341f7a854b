#include "base/check.hpp"
#include "base/names.hpp"
#include "base/try.hpp"
#include "cache/copy_strips.hpp"
#include "gpu/copy_kernels.hpp"
#include "gpu/cuda_fences.hpp"
#include "gpu/cuda_memory.hpp"
#include "gpu/cuda_mover.hpp"
#include "gpu/mover_proof.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hicache {

namespace {

/// Copies per call: enough to amortise it, few enough that the first run while more are listed.
constexpr auto batch_copies = size_t{1024};

constexpr auto method_names
  = std::to_array<std::string_view>({"batched", "single", "bulk", "words"});

constexpr auto direct_methods = std::array{cuda_copy_method::batched, cuda_copy_method::single};
constexpr auto kernel_methods = std::array{cuda_copy_method::bulk, cuda_copy_method::words};

struct pinned_deleter {
  void operator()(page_index* pages) const noexcept { static_cast<void>(cudaFreeHost(pages)); }
};

struct device_deleter {
  void operator()(copy_strip* strips) const noexcept { static_cast<void>(cudaFree(strips)); }
};

using pinned_pages = std::unique_ptr<page_index[], pinned_deleter>;
using device_strips = std::unique_ptr<copy_strip, device_deleter>;

/// The stream of one direction, and the events of each set.
class copy_stream {
public:
  result<void> open(uint32_t events_per_set) {
    auto lowest = 0;
    auto highest = 0;
    HICACHE_TRY(check_cuda(ec::copy_failed, "cudaDeviceGetStreamPriorityRange",
                           cudaDeviceGetStreamPriorityRange(&lowest, &highest)));
    auto* stream = cudaStream_t{nullptr};
    // A copy needs few SMs, but at once, not after the blocks of a large computation.
    HICACHE_TRY(check_cuda(ec::copy_failed, "cudaStreamCreateWithPriority",
                           cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest)));
    stream_.reset(stream);
    events_per_set_ = events_per_set;
    // The set after those of the submissions holds the fixed events for graphs.
    while (events_.size() < size_t{events_per_set} * (copy_sets + 1)) {
      auto* event = cudaEvent_t{nullptr};
      HICACHE_TRY(check_cuda(
        ec::copy_failed, "cudaEventCreateWithFlags",
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync)));
      events_.emplace_back(event);
    }
    return {};
  }

  cudaStream_t get() const noexcept { return stream_.get(); }

  result<void> mark(uint32_t set, uint32_t number) {
    return check_cuda(ec::copy_failed, "cudaEventRecord",
                      cudaEventRecord(event(set, number), stream_.get()));
  }

  result<void> wait(uint32_t set, uint32_t number) {
    return check_cuda(ec::copy_failed, "cudaEventSynchronize",
                      cudaEventSynchronize(event(set, number)));
  }

  /// After a failure: waits until nothing queued writes to the pages, or the device is lost.
  error settle(error failure) {
    if (const auto gone
        = check_cuda(ec::device_lost, "cudaStreamSynchronize", cudaStreamSynchronize(get()));
        !gone)
      return {ec::device_lost, failure.detail + "; " + gone.error().detail};
    return failure;
  }

  std::vector<void*> events(uint32_t set) const {
    auto list = std::vector<void*>{};
    for (auto number = uint32_t{0}; number < events_per_set_; ++number)
      list.push_back(event(set, number));
    return list;
  }

private:
  cudaEvent_t event(uint32_t set, uint32_t number) const {
    HICACHE_CHECK(set <= copy_sets && number < events_per_set_);
    return events_[size_t{set} * events_per_set_ + number].get();
  }

  unique_stream stream_;
  uint32_t events_per_set_ = 0;
  std::vector<unique_event> events_;
};

/// Manages streams and events; subclasses queue the copies.
class cuda_mover : public page_mover {
public:
  cuda_mover(int device, std::vector<copy_strip> strips, uint32_t layers)
    : device_(device), strips_(std::move(strips)), layers_(layers) {}

  /// Uses the calling thread's current device.
  result<void> open(uint32_t l1_pages) {
    fences_ = HICACHE_TRY(cuda_fences::open(device_, l1_pages));
    HICACHE_TRY(stores_.open(1));
    return loads_.open(layers_);
  }

  result<void> begin(copy_direction direction, uint32_t set, std::span<const page_index> l1_pages,
                     std::span<const page_index> l2_pages) override {
    HICACHE_CHECK(!l1_pages.empty() && l1_pages.size() == l2_pages.size());
    HICACHE_TRY(use_cuda_device(ec::device_lost, device_));
    auto queued = fences_->wait(stream_of(direction).get(), l1_pages);
    if (queued)
      queued = direction == copy_direction::store ? queue_store(set, l1_pages, l2_pages)
                                                  : queue_load(set, l1_pages, l2_pages);
    if (!queued)
      return tl::unexpected{stream_of(direction).settle(std::move(queued.error()))};
    return queued;
  }

  result<void> finish_layer(copy_direction direction, uint32_t set, uint32_t layer) override {
    HICACHE_TRY(use_cuda_device(ec::device_lost, device_));
    auto arrived = stream_of(direction).wait(set, direction == copy_direction::store ? 0 : layer);
    if (!arrived)
      return tl::unexpected{stream_of(direction).settle(std::move(arrived.error()))};
    return arrived;
  }

  std::vector<void*> layer_events(uint32_t set) const override { return loads_.events(set); }

  std::vector<void*> layer_events() const override { return loads_.events(copy_sets); }

  std::shared_ptr<page_fences> fences() const override { return fences_; }

protected:
  /// Strips to copy, and the pages of the submission.
  struct strip_copy {
    copy_direction direction;
    uint32_t set;
    size_t first_strip;
    size_t strip_count;
    std::span<const page_index> l1_pages;
    std::span<const page_index> l2_pages;
  };

  /// Queues copies of these strips on the direction's stream. Called in order of the strips.
  virtual result<void> queue(const strip_copy& copy) = 0;

  std::span<const copy_strip> strips() const noexcept { return strips_; }

  size_t strips_per_layer() const noexcept { return strips_.size() / layers_; }

  copy_stream& stream_of(copy_direction direction) noexcept {
    return direction == copy_direction::store ? stores_ : loads_;
  }

private:
  result<void> queue_store(uint32_t set, std::span<const page_index> l1_pages,
                           std::span<const page_index> l2_pages) {
    HICACHE_TRY(queue({copy_direction::store, set, 0, strips_.size(), l1_pages, l2_pages}));
    return stores_.mark(set, 0);
  }

  result<void> queue_load(uint32_t set, std::span<const page_index> l1_pages,
                          std::span<const page_index> l2_pages) {
    const auto count = strips_per_layer();
    for (auto layer = uint32_t{0}; layer < layers_; ++layer) {
      HICACHE_TRY(queue({copy_direction::load, set, layer * count, count, l1_pages, l2_pages}));
      HICACHE_TRY(loads_.mark(set, layer));
      HICACHE_TRY(loads_.mark(copy_sets, layer));
    }
    return {};
  }

  int device_;
  std::vector<copy_strip> strips_;
  uint32_t layers_;
  std::shared_ptr<cuda_fences> fences_;
  copy_stream stores_;
  copy_stream loads_;
};

/// Contiguous copies of one direction, passed to the driver in one call.
class copy_batch_call {
public:
  bool full() const noexcept { return sizes_.size() == batch_copies; }

  void add(uint64_t to, uint64_t from, uint64_t bytes) {
    to_.push_back(reinterpret_cast<void*>(to));
    from_.push_back(reinterpret_cast<void*>(from));
    sizes_.push_back(bytes);
  }

  /// Queues the added copies and clears the list.
  result<void> flush(cudaStream_t stream) {
    if (sizes_.empty())
      return {};
    auto queued = check_cuda(ec::copy_failed, "cudaMemcpyBatchAsync", call(stream));
    to_.clear();
    from_.clear();
    sizes_.clear();
    return queued;
  }

private:
  cudaError_t call([[maybe_unused]] cudaStream_t stream) {
#if CUDART_VERSION >= 12080
    auto attributes = cudaMemcpyAttributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    auto first = size_t{0};
#if CUDART_VERSION >= 13000
    return cudaMemcpyBatchAsync(to_.data(), from_.data(), sizes_.data(), sizes_.size(), &attributes,
                                &first, 1, stream);
#else
    auto failed = size_t{0};
    return cudaMemcpyBatchAsync(to_.data(), from_.data(), sizes_.data(), sizes_.size(), &attributes,
                                &first, 1, &failed, stream);
#endif
#else
    return cudaErrorNotSupported;
#endif
  }

  std::vector<void*> to_;
  std::vector<void*> from_;
  std::vector<size_t> sizes_;
};

/// Copies with the GPU's copy engines.
class direct_mover final : public cuda_mover {
public:
  direct_mover(int device, std::vector<copy_strip> strips, uint32_t layers, cuda_copy_method method)
    : cuda_mover(device, std::move(strips), layers), batched_(method == cuda_copy_method::batched) {
  }

protected:
  /// Layer by layer, so that the first one runs while the next is being listed.
  result<void> queue(const strip_copy& copy) override {
    // Each direction runs on its own thread and needs its own lists.
    auto& own = copy.direction == copy_direction::store ? store_lists_ : load_lists_;
    const auto count = strips_per_layer();
    for (auto first = size_t{0}; first < copy.strip_count; first += count) {
      own.copies.clear();
      append_copies(strips().subspan(copy.first_strip + first, count), copy.l1_pages, copy.l2_pages,
                    own.copies);
      for (const auto& rows : own.copies)
        HICACHE_TRY(queue_rows(copy.direction, rows, own.batch));
      HICACHE_TRY(own.batch.flush(stream_of(copy.direction).get()));
    }
    return {};
  }

private:
  struct lists {
    std::vector<row_copy> copies;
    copy_batch_call batch;
  };

  result<void> queue_rows(copy_direction direction, const row_copy& rows, copy_batch_call& batch) {
    const auto store = direction == copy_direction::store;
    const auto to = store ? rows.host_address : rows.device_address;
    const auto from = store ? rows.device_address : rows.host_address;
    auto* const stream = stream_of(direction).get();
    if (rows.rows > 1)
      return check_cuda(ec::copy_failed, "cudaMemcpy2DAsync",
                        cudaMemcpy2DAsync(reinterpret_cast<void*>(to),
                                          store ? rows.host_stride : rows.device_stride,
                                          reinterpret_cast<const void*>(from),
                                          store ? rows.device_stride : rows.host_stride,
                                          rows.row_bytes, rows.rows, cudaMemcpyDefault, stream));
    if (!batched_)
      return check_cuda(ec::copy_failed, "cudaMemcpyAsync",
                        cudaMemcpyAsync(reinterpret_cast<void*>(to),
                                        reinterpret_cast<const void*>(from), rows.row_bytes,
                                        cudaMemcpyDefault, stream));
    batch.add(to, from, rows.row_bytes);
    return batch.full() ? batch.flush(stream) : result<void>{};
  }

  bool batched_;
  lists store_lists_;
  lists load_lists_;
};

/// Copies with a kernel on a few SMs.
class kernel_mover final : public cuda_mover {
public:
  kernel_mover(int device, std::vector<copy_strip> strips, uint32_t layers, cuda_copy_method method,
               uint32_t sms)
    : cuda_mover(device, std::move(strips), layers),
      method_(method == cuda_copy_method::bulk ? kernel_method::bulk : kernel_method::words),
      sms_(sms) {}

  /// @param most_pages Of a submission: the smaller pool, as a page is in one copy at a time.
  result<void> prepare(uint32_t most_pages) {
    HICACHE_TRY(prepare_copy_kernel(method_));
    most_pages_ = most_pages;
    for (auto& list : lists_) {
      auto* pages = static_cast<void*>(nullptr);
      // L1 pages, followed by the L2 pages.
      HICACHE_TRY(check_cuda(ec::copy_failed, "cudaHostAlloc",
                             cudaHostAlloc(&pages, size_t{2} * most_pages * sizeof(page_index),
                                           cudaHostAllocPortable | cudaHostAllocMapped)));
      list.reset(static_cast<page_index*>(pages));
    }
    auto* uploaded = static_cast<void*>(nullptr);
    HICACHE_TRY(
      check_cuda(ec::copy_failed, "cudaMalloc", cudaMalloc(&uploaded, strips().size_bytes())));
    strips_.reset(static_cast<copy_strip*>(uploaded));
    HICACHE_TRY(check_cuda(
      ec::copy_failed, "cudaMemcpy",
      cudaMemcpy(uploaded, strips().data(), strips().size_bytes(), cudaMemcpyHostToDevice)));
    // cudaMemcpy from pageable memory may return early, and our streams do not wait for its stream.
    return check_cuda(ec::copy_failed, "cudaStreamSynchronize", cudaStreamSynchronize(nullptr));
  }

protected:
  result<void> queue(const strip_copy& copy) override {
    const auto pages = copy.l1_pages.size();
    HICACHE_CHECK(pages <= most_pages_);
    auto* const l1_pages
      = lists_[copy.set + (copy.direction == copy_direction::store ? 0 : copy_sets)].get();
    auto* const l2_pages = l1_pages + most_pages_;
    if (copy.first_strip == 0) {
      std::ranges::copy(copy.l1_pages, l1_pages);
      std::ranges::copy(copy.l2_pages, l2_pages);
    }
    auto launch = kernel_copy{};
    launch.direction = copy.direction;
    launch.strips = strips_.get() + copy.first_strip;
    launch.strip_count = copy.strip_count;
    launch.l1_pages = l1_pages;
    launch.l2_pages = l2_pages;
    launch.pages = pages;
    for (const auto& strip : strips().subspan(copy.first_strip, copy.strip_count))
      launch.bundles = std::max(launch.bundles, bundle_count(strip, pages));
    return launch_copy_kernel(method_, launch, sms_, stream_of(copy.direction).get());
  }

private:
  kernel_method method_;
  uint32_t sms_;
  uint32_t most_pages_ = 0;
  /// One per set: stores, then loads.
  std::array<pinned_pages, size_t{2} * copy_sets> lists_;
  device_strips strips_;
};

result<void> check_batches() {
  auto driver = 0;
  HICACHE_TRY(check_cuda(ec::unsupported, "cudaDriverGetVersion", cudaDriverGetVersion(&driver)));
  if (CUDART_VERSION < 12080 || driver < 12080)
    return fail(ec::unsupported, "batches of copies need CUDA 12.8; this build has version "
                                   + std::to_string(CUDART_VERSION) + " and the driver "
                                   + std::to_string(driver));
  return {};
}

result<void> check_sms(int device, uint32_t sms) {
  auto available = 0;
  HICACHE_TRY(
    check_cuda(ec::unsupported, "cudaDeviceGetAttribute",
               cudaDeviceGetAttribute(&available, cudaDevAttrMultiProcessorCount, device)));
  if (sms == 0 || sms > static_cast<uint32_t>(available))
    return fail(ec::unsupported, "the copy kernel cannot run on " + std::to_string(sms)
                                   + " SMs; expected 1 to " + std::to_string(available));
  return {};
}

/// Checks that a mover of this method copies correctly between small pools.
result<void> prove_method(int device, const pool_geometry& l2, const copy_options& options,
                          cuda_copy_method method) {
  // Enough for a next page and a next layer on both sides.
  auto shape = l2.shape();
  shape.layers = std::min(shape.layers, uint32_t{2});
  const auto l1_pool = pool_geometry{shape, host_layout::layer_first, 4};
  const auto l2_pool = pool_geometry{shape, l2.layout(), 4};
  auto l1_memory = HICACHE_TRY(allocate_cuda_memory(device, l1_pool.total_bytes(), "the GPU"));
  auto l2_memory = HICACHE_TRY(allocate_pinned_memory(device, l2_pool.total_bytes(), {}));
  const auto layers = device_layers::of(l1_pool, reinterpret_cast<uint64_t>(l1_memory->data()));
  auto mover
    = HICACHE_TRY(make_cuda_mover(device, layers, l2_pool, l2_memory->data(), options, method));
  return prove_mover(*mover, l1_pool, *l1_memory, l2_pool, *l2_memory);
}

} // namespace

const char* to_string(cuda_copy_method method) noexcept {
  return name_of(method_names, method);
}

std::span<const cuda_copy_method> methods_of(io_backend io) noexcept {
  return io == io_backend::direct ? direct_methods : kernel_methods;
}

result<std::unique_ptr<page_mover>> make_cuda_mover(int device, const device_layers& l1,
                                                    const pool_geometry& l2, std::byte* l2_data,
                                                    const copy_options& options,
                                                    cuda_copy_method method) {
  const auto scope = cuda_device_scope{device};
  HICACHE_TRY(scope.check(ec::copy_failed));
  auto strips = make_copy_strips(l1, l2, reinterpret_cast<uint64_t>(l2_data));
  const auto layers = l2.shape().layers;
  if (method == cuda_copy_method::batched || method == cuda_copy_method::single) {
    HICACHE_TRY(method == cuda_copy_method::single ? result<void>{} : check_batches());
    auto mover = std::make_unique<direct_mover>(device, std::move(strips), layers, method);
    HICACHE_TRY(mover->open(l1.pages));
    return mover;
  }
  HICACHE_TRY(check_sms(device, options.sms));
  auto mover
    = std::make_unique<kernel_mover>(device, std::move(strips), layers, method, options.sms);
  HICACHE_TRY(mover->open(l1.pages));
  HICACHE_TRY(mover->prepare(std::min(l1.pages, l2.pages())));
  return mover;
}

result<std::unique_ptr<page_mover>> make_proven_cuda_mover(int device, const device_layers& l1,
                                                           const pool_geometry& l2,
                                                           std::byte* l2_data,
                                                           const copy_options& options) {
  const auto scope = cuda_device_scope{device};
  HICACHE_TRY(scope.check(ec::copy_failed));
  auto reason = std::string{};
  for (const auto method : methods_of(options.io)) {
    // Only use shows what a driver and a GPU support, and a wrong copy corrupts the cache.
    auto proven = prove_method(device, l2, options, method);
    if (proven)
      return make_cuda_mover(device, l1, l2, l2_data, options, method);
    reason = std::string{to_string(method)} + ": " + proven.error().detail;
  }
  return fail(ec::unsupported, "the GPU cannot be used for copies, " + reason);
}

} // namespace hicache
