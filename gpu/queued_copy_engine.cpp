#include "gpu/queued_copy_engine.hpp"

#include "base/check.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace hicache {

namespace {

/// Runs tasks one after the other: on a thread of its own, or at once on the caller's.
class task_queue {
public:
  explicit task_queue(copy_threads threads) {
    if (threads == copy_threads::one_per_direction)
      worker_ = std::jthread{[this] { work(); }};
  }

  ~task_queue() {
    {
      const auto lock = std::scoped_lock{mutex_};
      closing_ = true;
    }
    changed_.notify_all();
  }

  void submit(std::function<void()> task) {
    if (!worker_.joinable())
      return task();
    {
      const auto lock = std::scoped_lock{mutex_};
      ++submitted_;
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }

  void drain() {
    auto lock = std::unique_lock{mutex_};
    const auto target = submitted_;
    changed_.wait(lock, [&] { return finished_ >= target; });
  }

private:
  void work() {
    auto lock = std::unique_lock{mutex_};
    while (true) {
      changed_.wait(lock, [this] { return closing_ || !tasks_.empty(); });
      if (tasks_.empty())
        return;
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      // What the task holds on to is released before drain() returns.
      task = nullptr;
      lock.lock();
      ++finished_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  uint64_t submitted_ = 0;
  uint64_t finished_ = 0;
  bool closing_ = false;
  // Last, so that it is joined before what it uses is gone.
  std::jthread worker_;
};

class queued_copy_engine final : public copy_engine {
public:
  queued_copy_engine(const pool_geometry& l1, const pool_geometry& l2,
                     std::unique_ptr<page_mover> mover, copy_threads threads)
    : l1_pages_(l1.pages()), l2_pages_(l2.pages()), layers_(l1.shape().layers),
      mover_(std::move(mover)), stores_(threads), loads_(threads) {
    HICACHE_CHECK(mover_ != nullptr);
    HICACHE_CHECK(l1.shape() == l2.shape());
    HICACHE_CHECK(l1.layout() == host_layout::layer_first);
  }

  void store(page_list device_pages, page_list host_pages, callback done) override {
    check(device_pages, host_pages);
    HICACHE_CHECK(done != nullptr);
    stores_.submit([this, device_pages = std::move(device_pages),
                    host_pages = std::move(host_pages),
                    done = std::move(done)] { done(mover_->store(*device_pages, *host_pages)); });
  }

  void load(page_list host_pages, page_list device_pages, layer_progress_ptr progress,
            callback done) override {
    check(device_pages, host_pages);
    HICACHE_CHECK(done != nullptr);
    HICACHE_CHECK(progress != nullptr && progress->layers() == layers_);
    loads_.submit([this, host_pages = std::move(host_pages), device_pages = std::move(device_pages),
                   progress = std::move(progress), done = std::move(done)] {
      auto moved = mover_->load(*host_pages, *device_pages,
                                [&](uint32_t layers) { progress->advance(layers); });
      if (!moved)
        progress->fail();
      done(std::move(moved));
    });
  }

  void drain() override {
    stores_.drain();
    loads_.drain();
  }

private:
  /// A page that does not exist must not become an address.
  void check(const page_list& device_pages, const page_list& host_pages) const {
    HICACHE_CHECK(device_pages != nullptr && host_pages != nullptr);
    HICACHE_CHECK(device_pages->size() == host_pages->size());
    HICACHE_CHECK(std::ranges::all_of(*device_pages, [this](auto p) { return p < l1_pages_; }));
    HICACHE_CHECK(std::ranges::all_of(*host_pages, [this](auto p) { return p < l2_pages_; }));
  }

  uint32_t l1_pages_;
  uint32_t l2_pages_;
  uint32_t layers_;
  std::unique_ptr<page_mover> mover_;
  task_queue stores_;
  task_queue loads_;
};

} // namespace

std::unique_ptr<copy_engine> make_queued_copy_engine(const pool_geometry& l1,
                                                     const pool_geometry& l2,
                                                     std::unique_ptr<page_mover> mover,
                                                     copy_threads threads) {
  return std::make_unique<queued_copy_engine>(l1, l2, std::move(mover), threads);
}

} // namespace hicache
