#pragma once

#include "gpu/cuda_memory.hpp"
#include "gpu/device.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <type_traits>
#include <vector>

namespace hicache {

struct cuda_deleter {
  void operator()(cudaStream_t stream) const noexcept {
    static_cast<void>(cudaStreamDestroy(stream));
  }

  void operator()(cudaEvent_t event) const noexcept { static_cast<void>(cudaEventDestroy(event)); }
};

using unique_stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, cuda_deleter>;
using unique_event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, cuda_deleter>;

/// Tracks per page what copies on this device must wait for. A private stream waits for the
/// engine's events one after the other and records one of our events after each. A page therefore
/// needs only one number: waiting for a later event implies waiting for the earlier ones.
class cuda_fences final : public page_fences {
public:
  /// @param pages Pages of L1, including padding.
  static result<std::shared_ptr<cuda_fences>> open(int device, uint32_t pages);

  cuda_fences(int device, uint32_t pages, unique_stream stream);

  result<void> add(std::span<const page_index> l1_pages, void* event) override;

  /// Makes later work on `stream` wait for all events of these pages. Uses the current device.
  result<void> wait(cudaStream_t stream, std::span<const page_index> l1_pages);

private:
  struct fence {
    uint64_t number = 0;
    unique_event event;
  };

  /// Drops fences that have passed. The lock is held.
  void forget_passed();
  /// An event to record after the newest fence. The lock is held.
  result<fence*> next_fence();

  int device_;
  std::mutex mutex_;
  /// The newest fence of each page; 0 for none.
  std::vector<uint64_t> last_;
  /// Pending fences, oldest first.
  std::deque<fence> open_;
  std::vector<unique_event> unused_;
  uint64_t issued_ = 0;
  // Last: the stream must be destroyed before the events that it uses.
  unique_stream stream_;
};

} // namespace hicache
