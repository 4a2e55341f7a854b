#pragma once

#include "base/copy_workers.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

namespace hicache {

/// Distributes the pages of a large batch over threads that copy and hash them. The threads start
/// with the first large batch. Thread-safe; a concurrent call processes its pages alone.
class batch_copier {
public:
  /// Calls work(position, worker) once for each position below `count` and returns when all have
  /// returned. Calls of the same worker, a number below limits::copy_threads, do not overlap.
  /// @param bytes Of all pages.
  void for_each(size_t count, uint64_t bytes,
                const std::function<void(size_t position, uint32_t worker)>& work);

private:
  std::mutex mutex_; // Guards workers_; held while the threads run.
  std::optional<copy_workers> workers_;
};

} // namespace hicache
