#include "base/copy_workers.hpp"

#include "base/check.hpp"

#include <utility>

namespace hicache {

copy_workers::copy_workers(uint32_t workers) {
  HICACHE_CHECK(workers > 0);
  helpers_.reserve(workers - 1);
  for (auto worker = uint32_t{1}; worker < workers; ++worker)
    helpers_.emplace_back([this, worker] { help(worker); });
}

copy_workers::~copy_workers() {
  {
    const auto lock = std::scoped_lock{mutex_};
    closing_ = true;
  }
  changed_.notify_all();
}

void copy_workers::start(std::function<void(uint32_t)> work) {
  {
    const auto lock = std::scoped_lock{mutex_};
    HICACHE_CHECK(busy_ == 0);
    work_ = std::move(work);
    busy_ = size() - 1;
    ++round_;
  }
  changed_.notify_all();
}

void copy_workers::join() {
  auto lock = std::unique_lock{mutex_};
  changed_.wait(lock, [this] { return busy_ == 0; });
}

void copy_workers::help(uint32_t worker) {
  auto seen = uint64_t{0};
  auto lock = std::unique_lock{mutex_};
  while (true) {
    changed_.wait(lock, [&] { return closing_ || round_ != seen; });
    if (closing_)
      return;
    seen = round_;
    lock.unlock();
    work_(worker);
    lock.lock();
    if (--busy_ == 0)
      changed_.notify_all();
  }
}

} // namespace hicache
