#include "gpu/copy_workers.hpp"

#include "base/check.hpp"

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

void copy_workers::run(const std::function<void(uint32_t)>& work) {
  if (helpers_.empty())
    return work(0);
  {
    const auto lock = std::scoped_lock{mutex_};
    work_ = &work;
    busy_ = size() - 1;
    ++round_;
  }
  changed_.notify_all();
  work(0);
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
    (*work_)(worker);
    lock.lock();
    if (--busy_ == 0)
      changed_.notify_all();
  }
}

} // namespace hicache
