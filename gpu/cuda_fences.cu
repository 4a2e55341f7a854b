#include "base/limits.hpp"
#include "base/try.hpp"
#include "gpu/cuda_fences.hpp"

#include <algorithm>
#include <utility>

namespace hicache {

result<std::shared_ptr<cuda_fences>> cuda_fences::open(int device, uint32_t pages) {
  HICACHE_TRY(use_cuda_device(ec::copy_failed, device));
  auto* stream = cudaStream_t{nullptr};
  HICACHE_TRY(check_cuda(ec::copy_failed, "cudaStreamCreateWithFlags",
                         cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
  return std::make_shared<cuda_fences>(device, pages, unique_stream{stream});
}

cuda_fences::cuda_fences(int device, uint32_t pages, unique_stream stream)
  : device_(device), last_(pages), stream_(std::move(stream)) {}

result<void> cuda_fences::add(std::span<const page_index> l1_pages, void* event) {
  const auto lock = std::scoped_lock{mutex_};
  HICACHE_TRY(use_cuda_device(ec::copy_failed, device_));
  forget_passed();
  const auto newest = HICACHE_TRY(next_fence());
  HICACHE_TRY(check_cuda(ec::copy_failed, "cudaStreamWaitEvent",
                         cudaStreamWaitEvent(stream_.get(), static_cast<cudaEvent_t>(event), 0)));
  HICACHE_TRY(check_cuda(ec::copy_failed, "cudaEventRecord",
                         cudaEventRecord(newest->event.get(), stream_.get())));
  for (const auto page : l1_pages)
    last_.at(page) = newest->number;
  return {};
}

result<void> cuda_fences::wait(cudaStream_t stream, std::span<const page_index> l1_pages) {
  const auto lock = std::scoped_lock{mutex_};
  forget_passed();
  auto newest = uint64_t{0};
  for (const auto page : l1_pages)
    newest = std::max(newest, last_.at(page));
  if (open_.empty() || newest < open_.front().number)
    return {};
  const auto& awaited = open_.at(newest - open_.front().number);
  return check_cuda(ec::copy_failed, "cudaStreamWaitEvent",
                    cudaStreamWaitEvent(stream, awaited.event.get(), 0));
}

void cuda_fences::forget_passed() {
  while (!open_.empty() && cudaEventQuery(open_.front().event.get()) == cudaSuccess) {
    unused_.push_back(std::move(open_.front().event));
    open_.pop_front();
  }
  // Clear "not ready", so that the next caller of cudaGetLastError does not see it.
  static_cast<void>(cudaGetLastError());
}

result<cuda_fences::fence*> cuda_fences::next_fence() {
  // Recorded again, the newest fence covers both events.
  if (open_.size() >= limits::page_fences_open)
    return &open_.back();
  if (unused_.empty()) {
    auto* event = cudaEvent_t{nullptr};
    HICACHE_TRY(check_cuda(ec::copy_failed, "cudaEventCreateWithFlags",
                           cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    unused_.emplace_back(event);
  }
  auto& newest = open_.emplace_back(fence{++issued_, std::move(unused_.back())});
  unused_.pop_back();
  return &newest;
}

} // namespace hicache
