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

/// What copies on this device have to wait for, page by page. A stream of its own waits for one
/// event of the engine's after the other and records an event of ours behind each, so that a page
/// needs to remember one number only: whoever waits for a later event has waited for the earlier.
class cuda_fences final : public page_fences {
public:
  /// @param pages Pages of L1, padding included.
  static result<std::shared_ptr<cuda_fences>> open(int device, uint32_t pages);

  cuda_fences(int device, uint32_t pages, unique_stream stream);

  result<void> add(std::span<const page_index> l1_pages, void* event) override;

  /// What is queued on `stream` from now on waits for all that was added for these pages. The
  /// device is the calling thread's current one.
  result<void> wait(cudaStream_t stream, std::span<const page_index> l1_pages);

private:
  struct fence {
    uint64_t number = 0;
    unique_event event;
  };

  /// Forgets the fences that are behind us. Under the lock.
  void forget_passed();
  /// An event to record behind the newest fence. Under the lock.
  result<fence*> next_fence();

  int device_;
  std::mutex mutex_;
  /// The newest fence of each page; 0 for none.
  std::vector<uint64_t> last_;
  /// Not passed yet, oldest first.
  std::deque<fence> open_;
  std::vector<unique_event> unused_;
  uint64_t issued_ = 0;
  // Last: the stream goes before the events that it uses.
  unique_stream stream_;
};

} // namespace hicache
