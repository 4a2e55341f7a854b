#include "base/batch_copier.hpp"

#include "base/limits.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

namespace hicache {

namespace {

/// From this size on, waking another thread pays off.
constexpr auto shared_bytes = uint64_t{2} << 20;

} // namespace

void batch_copier::for_each(size_t count, uint64_t bytes,
                            const std::function<void(size_t position, uint32_t worker)>& work) {
  auto next = std::atomic<size_t>{0};
  const auto work_as = [&](uint32_t worker) {
    for (auto i = next++; i < count; i = next++)
      work(i, worker);
  };
  const auto lock = std::unique_lock{mutex_, std::try_to_lock};
  if (bytes < shared_bytes || !lock)
    return work_as(0);
  if (!workers_)
    workers_.emplace(std::clamp(std::thread::hardware_concurrency(), 1U, limits::copy_threads));
  workers_->start(work_as);
  work_as(0);
  workers_->join();
}

} // namespace hicache
