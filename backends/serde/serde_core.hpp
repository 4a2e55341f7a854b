#pragma once

#include "backends/serde/object_codec.hpp"
#include "backends/serde/serde_batch.hpp"
#include "backends/sized_reads.hpp"
#include "base/immovable.hpp"
#include "base/spare_pool.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hicache::serde {

/// Objects begin on cache lines of their own in a chunk's memory.
inline constexpr uint64_t object_alignment = 64;

constexpr uint64_t aligned(uint64_t bytes) noexcept {
  return (bytes + object_alignment - 1) / object_alignment * object_alignment;
}

/// What happens to batches; shared by the decorator, its threads and the store's completions.
class serde_core : public std::enable_shared_from_this<serde_core> {
public:
  using batch_number = storage_backend::batch_number;
  using expiry = storage_backend::expiry;
  using transfer_ptr = std::shared_ptr<transfer>;
  using chunk_ptr = std::shared_ptr<chunk>;

  serde_core(std::unique_ptr<object_codec> codec, std::unique_ptr<storage_backend> store,
             std::shared_ptr<bounce_pool> pool, const clock_source& clock);

  storage_backend& store() noexcept { return *store_; }
  const object_codec& codec() const noexcept { return *codec_; }

  batch_number submit(const transfer_ptr& next);

  /// Passes a call on to the store. Its number stands for the store's.
  template <class Answer, class Call>
  batch_number forward(Call call, std::function<void(Answer)> done);

  /// The keys of a batch as the store knows them.
  store_batch<page_key> names_of(store_batch<page_key> keys);

  expiry expire(batch_number number);

  bool is_lossy() const noexcept {
    return codec_->options().chain.quantisation != quantisation::none;
  }

  /// As storage_backend::watch_evictions: keys and bytes are those before encoding. Objects that do
  /// not decode are told without bytes.
  bool watch_evictions(storage_backend::eviction_watch watch, bool wants_bytes);

  /// Corrects the store's counters by what decoding found.
  backend_health corrected(backend_health health) const;

  bool close(std::chrono::nanoseconds grace);

  /// A worker's thread.
  void work();

private:
  /// A step of a batch.
  struct job {
    transfer_ptr batch;
    std::function<void(codec_scratch&)> run;
  };

  /// Lets a thread touch a batch's parts; false if the batch is over.
  class use : immovable {
  public:
    use(serde_core& core, transfer_ptr batch) : core_(core), batch_(std::move(batch)) {
      const auto lock = std::scoped_lock{core_.mutex_};
      is_granted_ = batch_->state != transfer::phase::over && !batch_->failure;
      if (is_granted_) {
        batch_->state = transfer::phase::running;
        ++batch_->uses;
      }
    }
    ~use() {
      if (is_granted_)
        core_.end_use(batch_);
    }

    explicit operator bool() const noexcept { return is_granted_; }

  private:
    serde_core& core_;
    const transfer_ptr batch_;
    bool is_granted_ = false;
  };

  // -- steps of a batch, on a worker's thread -----------------------------------

  void begin(const transfer_ptr& batch);
  void pump(const transfer_ptr& batch);
  void start_read(const chunk_ptr& part);
  void decode(const chunk_ptr& part, codec_scratch& scratch);
  void start_write(const chunk_ptr& part, codec_scratch& scratch);
  void finish(const chunk_ptr& part);

  /// The next objects of a batch, as far as they fit a chunk; null if there are none.
  /// @pre the lock is held
  chunk_ptr cut_chunk(const transfer_ptr& batch, uint64_t& bytes);

  /// Makes the store's list of a chunk to read.
  std::vector<page_read> encoded_reads(const chunk& part) const;

  /// Encodes a chunk's objects and makes the store's list of them.
  std::vector<page_write> encoded_writes(const chunk_ptr& part, codec_scratch& scratch);

  /// Remembers the store's call, and ends its wait if the batch is over already.
  void note_call(const chunk_ptr& part, batch_number call);

  void enqueue(const transfer_ptr& batch, std::function<void(codec_scratch&)> run);

  /// Queues a job: those of reads before those of writes, else FIFO.
  /// @pre the lock is held
  void add_job(job next);

  void run(job& next, codec_scratch& scratch);

  // -- evictions ------------------------------------------------------------------

  /// The bytes of evicted objects, in order; empty ones of those that do not decode. On the store's
  /// thread: it cannot wait for a worker, which may be the one that writes to the store.
  std::vector<std::vector<std::byte>> decoded(std::span<const evicted_object> objects);

  // -- ends of a batch ------------------------------------------------------------

  /// Ends the batch if it is complete or has failed and nobody else uses it.
  void end_use(const transfer_ptr& batch);

  /// Ends a batch that is not complete as soon as no thread uses its parts.
  void fail_batch(const transfer_ptr& batch, error reason);

  /// Answers a batch and takes it off the books.
  /// @pre the lock is held by `lock`, which is released; no thread uses the parts
  void end(const transfer_ptr& batch, std::unique_lock<std::mutex>& lock);

  /// What a batch kept. Destroyed without the lock: chunks give memory back then, and what the
  /// caller gave may call the store.
  struct leavings {
    std::vector<chunk_ptr> open;
    /// The store's calls in progress.
    std::vector<batch_number> calls;
    storage_backend::pages_done done;
    storage_backend::read_progress progress;
    std::unique_ptr<store_batch<page_read>> read_batch;
    std::unique_ptr<store_batch<page_write>> write_batch;
  };

  /// Takes a batch off the books. A call of the store that hangs keeps the batch, but not what the
  /// caller gave.
  /// @pre the lock is held
  leavings take_off(const transfer_ptr& batch);

  /// @pre the lock is held by `lock`, which may be released
  expiry expire_write(const transfer_ptr& batch, std::unique_lock<std::mutex>& lock);

  /// @pre the lock is held
  bool is_idle() const { return batches_.empty() && jobs_.empty() && busy_ == 0; }

  const std::unique_ptr<object_codec> codec_;
  const std::unique_ptr<storage_backend> store_;
  /// Null if the store does not tell lengths.
  sized_reads* const sized_;
  const std::shared_ptr<bounce_pool> pool_;
  const clock_source& clock_;
  const size_t chunk_objects_;

  /// Reads that the store counts as hits but did not decode: corrupt ones, and others.
  std::atomic<uint64_t> corrupt_ = 0;
  std::atomic<uint64_t> undecoded_ = 0;
  /// Objects that failed before the store saw them.
  std::atomic<uint64_t> failed_ = 0;

  /// For evicted objects.
  spare_pool<codec_scratch> scratches_;

  std::mutex mutex_; // Guards what follows, and the batches.
  std::condition_variable changed_;
  std::unordered_map<batch_number, transfer_ptr> batches_;
  /// The store's numbers of forwarded calls; 0 until it is known.
  std::unordered_map<batch_number, batch_number> forwarded_;
  batch_number last_number_ = 0;
  std::deque<job> jobs_;
  size_t busy_ = 0;
  bool is_closing_ = false;
  bool is_ending_ = false;
};

template <class Answer, class Call>
serde_core::batch_number serde_core::forward(Call call, std::function<void(Answer)> done) {
  auto number = batch_number{0};
  {
    const auto lock = std::scoped_lock{mutex_};
    number = ++last_number_;
    forwarded_.emplace(number, 0);
  }
  const auto own = call([self = shared_from_this(), number, done = std::move(done)](Answer answer) {
    {
      const auto lock = std::scoped_lock{self->mutex_};
      self->forwarded_.erase(number);
    }
    done(std::move(answer));
  });
  const auto lock = std::scoped_lock{mutex_};
  if (const auto entry = forwarded_.find(number); entry != forwarded_.end())
    entry->second = own;
  return number;
}

} // namespace hicache::serde
