#pragma once

#include "base/immovable.hpp"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hicache {

/// Persistent threads that share pieces of work with a caller. One thread at a time calls start()
/// and join(). Not copyable.
class copy_workers : immovable {
public:
  /// @param workers Includes the caller: workers - 1 threads start.
  /// @pre workers > 0
  explicit copy_workers(uint32_t workers);
  ~copy_workers();

  uint32_t size() const noexcept { return static_cast<uint32_t>(helpers_.size()) + 1; }

  /// Runs work(1) to work(size() - 1) on the helper threads without blocking; the caller runs
  /// work(0).
  /// @pre the previous work was joined
  void start(std::function<void(uint32_t worker)> work);

  /// Waits until the helpers have returned from the last work.
  void join();

private:
  void help(uint32_t worker);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(uint32_t)> work_;
  /// Counts calls of start(), so that each helper takes part in each of them once.
  uint64_t round_ = 0;
  uint32_t busy_ = 0;
  bool closing_ = false;
  // Last, so that the threads are joined before the members they use are destroyed.
  std::vector<std::jthread> helpers_;
};

} // namespace hicache
