#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hicache {

/// Persistent threads that help a caller with one piece of work after the other. start() and join()
/// are called by one thread at a time. Not copyable.
class copy_workers {
public:
  /// @param workers Counts the caller: one thread less is started.
  /// @pre workers > 0
  explicit copy_workers(uint32_t workers);
  copy_workers(const copy_workers&) = delete;
  copy_workers& operator=(const copy_workers&) = delete;
  ~copy_workers();

  uint32_t size() const noexcept { return static_cast<uint32_t>(helpers_.size()) + 1; }

  /// Has work(1) to work(size() - 1) called on the helpers' threads and returns at once; work(0) is
  /// the caller's own.
  /// @pre the work that was started last was joined
  void start(std::function<void(uint32_t worker)> work);

  /// Returns when the helpers have returned from what was started last.
  void join();

private:
  void help(uint32_t worker);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(uint32_t)> work_;
  /// Counts calls of start(), so that a helper takes part in each of them once.
  uint64_t round_ = 0;
  uint32_t busy_ = 0;
  bool closing_ = false;
  // Last, so that they are joined before what they use is gone.
  std::vector<std::jthread> helpers_;
};

} // namespace hicache
