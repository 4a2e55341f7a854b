#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace hicache {

/// Things that serve one thread at a time, kept for the next one. Any thread.
template <class T>
class spare_pool {
public:
  /// The one given back last; null if all are in use.
  std::unique_ptr<T> take() {
    const auto lock = std::scoped_lock{mutex_};
    if (spare_.empty())
      return nullptr;
    auto last = std::move(spare_.back());
    spare_.pop_back();
    return last;
  }

  void give_back(std::unique_ptr<T> used) {
    const auto lock = std::scoped_lock{mutex_};
    spare_.push_back(std::move(used));
  }

  void clear() {
    const auto lock = std::scoped_lock{mutex_};
    spare_.clear();
  }

private:
  std::mutex mutex_; // Guards what follows.
  std::vector<std::unique_ptr<T>> spare_;
};

} // namespace hicache
