#include "gpu/queued_copy_engine.hpp"

#include "base/check.hpp"
#include "base/try.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

namespace hicache {

namespace {

/// A command of either direction.
struct copy_job {
  operation_id id = 0;
  page_list l1_pages;
  page_list l2_pages;
  /// Null for a store.
  layer_progress_ptr progress;
  /// Whether `progress` was notified that the copies are queued, which happens once.
  bool queued = false;
  result<void> outcome;
};

/// One submission to the mover: some jobs of a batch, and their pages.
struct attempt {
  std::span<copy_job> jobs;
  std::span<const page_index> l1_pages;
  std::span<const page_index> l2_pages;
  uint32_t set = 0;
  result<void> begun;
  /// Whether native events were handed out for it.
  bool promised = false;
};

/// One call of store() or load().
struct batch {
  std::vector<copy_job> jobs;
  copy_engine::callback done;
  /// Concatenated lists of all jobs.
  std::vector<page_index> l1_pages;
  std::vector<page_index> l2_pages;
  attempt whole;
  /// Whether begin was called for `whole`.
  bool begun = false;
};

/// One direction. A batch waits for a free set of the mover, is begun by one thread, and is
/// finished and reported by another, in call order.
class copy_lane {
public:
  copy_lane(copy_direction direction, uint32_t layers, page_mover& mover, bool inline_copies)
    : direction_(direction), layers_(layers), mover_(mover), inline_(inline_copies) {
    if (inline_)
      return;
    beginner_ = std::jthread{[this] { begin_batches(); }};
    finisher_ = std::jthread{[this] { finish_batches(); }};
  }

  ~copy_lane() {
    {
      const auto lock = std::scoped_lock{mutex_};
      closing_ = true;
    }
    changed_.notify_all();
  }

  void submit(std::vector<copy_job> jobs, copy_engine::callback done) {
    auto submitted = batch{};
    submitted.jobs = std::move(jobs);
    submitted.done = std::move(done);
    if (inline_) {
      {
        const auto lock = std::scoped_lock{mutex_};
        begin(submitted);
        finish(submitted);
      }
      return report(submitted);
    }
    {
      const auto lock = std::scoped_lock{mutex_};
      ++submitted_;
      waiting_.push_back(std::move(submitted));
    }
    changed_.notify_all();
  }

  void drain() {
    auto lock = std::unique_lock{mutex_};
    const auto target = submitted_;
    changed_.wait(lock, [&] { return finished_ >= target; });
  }

private:
  // -- threads ----------------------------------------------------------------

  bool closed() const { return closing_ && waiting_.empty() && running_.empty(); }

  bool can_begin() const { return !waiting_.empty() && running_.size() < copy_sets; }

  void begin_batches() {
    auto lock = std::unique_lock{mutex_};
    while (true) {
      changed_.wait(lock, [this] { return again_ != nullptr || can_begin() || closed(); });
      if (again_ != nullptr) {
        lock.unlock();
        begin(*again_);
        lock.lock();
        again_ = nullptr;
      } else if (can_begin()) {
        // Its address is stable while others are added behind it or removed in front of it.
        auto& next = running_.emplace_back(std::move(waiting_.front()));
        waiting_.pop_front();
        next.whole.set = next_set_;
        next_set_ = (next_set_ + 1) % copy_sets;
        lock.unlock();
        begin(next);
        lock.lock();
        next.begun = true;
      } else {
        return;
      }
      changed_.notify_all();
    }
  }

  void finish_batches() {
    auto lock = std::unique_lock{mutex_};
    while (true) {
      changed_.wait(lock,
                    [this] { return closed() || (!running_.empty() && running_.front().begun); });
      if (running_.empty())
        return;
      auto& first = running_.front();
      lock.unlock();
      finish(first);
      report(first);
      // Released before drain() returns, and unlocked: destructors of captures may call the engine.
      first = batch{};
      lock.lock();
      running_.pop_front();
      ++finished_;
      changed_.notify_all();
    }
  }

  /// Begins a job alone, on the beginning thread, as movers require.
  void begin_again(attempt& alone) {
    if (inline_)
      return begin(alone);
    auto lock = std::unique_lock{mutex_};
    again_ = &alone;
    changed_.notify_all();
    changed_.wait(lock, [this] { return again_ == nullptr; });
  }

  // -- one batch --------------------------------------------------------------

  void begin(batch& next) {
    next.whole.jobs = next.jobs;
    for (auto& job : next.jobs) {
      std::ranges::copy(*job.l1_pages, std::back_inserter(next.l1_pages));
      std::ranges::copy(*job.l2_pages, std::back_inserter(next.l2_pages));
      // A load without pages is complete at once.
      if (job.progress && job.l2_pages->empty()) {
        tell_queued(job, {});
        tell_arrived(job, layers_);
      }
    }
    next.whole.l1_pages = next.l1_pages;
    next.whole.l2_pages = next.l2_pages;
    begin(next.whole);
  }

  void begin(attempt& next) {
    if (next.l2_pages.empty())
      return;
    next.begun = mover_.begin(direction_, next.set, next.l1_pages, next.l2_pages);
    if (!next.begun || direction_ == copy_direction::store)
      return;
    const auto events = mover_.layer_events(next.set);
    next.promised = !events.empty();
    for (auto& job : next.jobs)
      tell_queued(job, events);
  }

  result<void> finish(const attempt& first) {
    if (!first.begun || first.l2_pages.empty())
      return first.begun;
    // A store completes as a whole.
    const auto from = direction_ == copy_direction::store ? layers_ - 1 : 0;
    for (auto layer = from; layer < layers_; ++layer) {
      HICACHE_TRY(mover_.finish_layer(direction_, first.set, layer));
      for (auto& job : first.jobs)
        tell_arrived(job, layer + 1);
    }
    return {};
  }

  void finish(batch& first) {
    const auto outcome = finish(first.whole);
    // Events that were handed out promise layers of the failed submission and cannot be revoked:
    // their users must see that the load failed.
    const auto is_final = first.whole.promised || std::ranges::count_if(first.jobs, has_pages) == 1;
    for (auto& job : first.jobs) {
      if (!outcome && has_pages(job))
        job.outcome = is_final ? outcome : run_alone(job, first.whole.set);
      if (!job.outcome && job.progress)
        job.progress->fail();
    }
  }

  result<void> run_alone(copy_job& job, uint32_t set) {
    auto alone = attempt{{&job, 1}, *job.l1_pages, *job.l2_pages, set, {}, false};
    begin_again(alone);
    return finish(alone);
  }

  static void report(const batch& finished) {
    for (const auto& job : finished.jobs)
      finished.done(job.id, job.outcome);
  }

  // -- one job ----------------------------------------------------------------

  static bool has_pages(const copy_job& job) { return !job.l2_pages->empty(); }

  static void tell_queued(copy_job& job, std::vector<void*> events) {
    if (!job.queued)
      job.progress->queue(std::move(events));
    job.queued = true;
  }

  /// Layers of an earlier attempt stay reported.
  static void tell_arrived(const copy_job& job, uint32_t layers) {
    if (job.progress && layers > job.progress->done())
      job.progress->advance(layers);
  }

  copy_direction direction_;
  uint32_t layers_;
  page_mover& mover_;
  bool inline_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<batch> waiting_;
  /// Begun or about to be; at most copy_sets.
  std::deque<batch> running_;
  /// The attempt that begin_again() passes to the beginning thread.
  attempt* again_ = nullptr;
  uint32_t next_set_ = 0;
  uint64_t submitted_ = 0;
  uint64_t finished_ = 0;
  bool closing_ = false;
  // Last, so that they are joined before the members that they use go.
  std::jthread beginner_;
  std::jthread finisher_;
};

class queued_copy_engine final : public copy_engine {
public:
  queued_copy_engine(uint32_t l1_pages, uint32_t l2_pages, uint32_t layers,
                     std::unique_ptr<page_mover> mover, bool inline_copies)
    : l1_pages_(l1_pages), l2_pages_(l2_pages), layers_(layers), mover_(std::move(mover)),
      stores_(copy_direction::store, layers, *mover_, inline_copies),
      loads_(copy_direction::load, layers, *mover_, inline_copies) {}

  void store(std::vector<write_command> commands, callback done) override {
    HICACHE_CHECK(done != nullptr);
    auto jobs = std::vector<copy_job>{};
    for (auto& command : commands)
      jobs.push_back(job_of(command, nullptr));
    stores_.submit(std::move(jobs), std::move(done));
  }

  void load(std::vector<load_command> commands, callback done) override {
    HICACHE_CHECK(done != nullptr);
    auto jobs = std::vector<copy_job>{};
    for (auto& command : commands) {
      HICACHE_CHECK(command.progress != nullptr && command.progress->layers() == layers_);
      jobs.push_back(job_of(command, std::move(command.progress)));
    }
    loads_.submit(std::move(jobs), std::move(done));
  }

  void drain() override {
    stores_.drain();
    loads_.drain();
  }

  std::shared_ptr<page_fences> fences() const override { return mover_->fences(); }

  std::vector<void*> layer_events() const override { return mover_->layer_events(); }

private:
  /// Prevents invalid page numbers from becoming addresses.
  copy_job job_of(auto& command, layer_progress_ptr progress) const {
    auto& l1_pages = command.l1_pages;
    auto& l2_pages = command.l2_pages;
    HICACHE_CHECK(l1_pages != nullptr && l2_pages != nullptr);
    HICACHE_CHECK(l1_pages->size() == l2_pages->size());
    HICACHE_CHECK(std::ranges::all_of(*l1_pages, [this](auto p) { return p < l1_pages_; }));
    HICACHE_CHECK(std::ranges::all_of(*l2_pages, [this](auto p) { return p < l2_pages_; }));
    return {command.id, std::move(l1_pages), std::move(l2_pages), std::move(progress), false, {}};
  }

  uint32_t l1_pages_;
  uint32_t l2_pages_;
  uint32_t layers_;
  std::unique_ptr<page_mover> mover_;
  copy_lane stores_;
  copy_lane loads_;
};

} // namespace

std::unique_ptr<copy_engine> make_queued_copy_engine(uint32_t l1_pages, uint32_t l2_pages,
                                                     uint32_t layers,
                                                     std::unique_ptr<page_mover> mover,
                                                     bool inline_copies) {
  HICACHE_CHECK(layers > 0);
  HICACHE_CHECK(mover != nullptr);
  return std::make_unique<queued_copy_engine>(l1_pages, l2_pages, layers, std::move(mover),
                                              inline_copies);
}

} // namespace hicache
