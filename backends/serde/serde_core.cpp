#include "backends/serde/serde_core.hpp"

#include "base/limits.hpp"

#include <algorithm>
#include <exception>
#include <string>

namespace hicache::serde {

namespace {

/// Objects of a chunk if the store prefers no number.
constexpr size_t default_chunk_objects = 32;

} // namespace

serde_core::serde_core(std::unique_ptr<object_codec> codec, std::unique_ptr<storage_backend> store,
                       std::shared_ptr<bounce_pool> pool, const clock_source& clock)
  : codec_(std::move(codec)), store_(std::move(store)), sized_(sized_reads_of(*store_)),
    pool_(std::move(pool)), clock_(clock),
    chunk_objects_(store_->capabilities().preferred_batch == 0
                     ? default_chunk_objects
                     : store_->capabilities().preferred_batch) {}

// -- calls from outside -----------------------------------------------------------

serde_core::batch_number serde_core::submit(const transfer_ptr& next) {
  auto lock = std::unique_lock{mutex_};
  const auto number = next->number = ++last_number_;
  if (!is_closing_ && batches_.size() < limits::storage_queue_batches) {
    batches_.emplace(number, next);
    add_job({next, [this, next](codec_scratch&) { begin(next); }});
    lock.unlock();
    changed_.notify_all();
    return number;
  }
  const auto reason = is_closing_
                        ? error{ec::stopping, {}}
                        : error{ec::limit_reached, "too many batches wait for the codecs"};
  lock.unlock();
  next->done(std::vector<result<void>>(next->size, tl::unexpected{reason}));
  return number;
}

store_batch<page_key> serde_core::names_of(store_batch<page_key> keys) {
  const auto size = keys.size();
  return {size, [self = shared_from_this(), keys = std::move(keys)] {
            auto names = keys.list();
            for (auto& name : names)
              name = self->codec_->object_name(name);
            return names;
          }};
}

serde_core::expiry serde_core::expire(batch_number number) {
  auto lock = std::unique_lock{mutex_};
  if (const auto entry = forwarded_.find(number); entry != forwarded_.end()) {
    const auto call = entry->second;
    lock.unlock();
    const auto state = store_->expire(call);
    lock.lock();
    if (state == expiry::withdrawn)
      forwarded_.erase(number);
    return state;
  }
  const auto entry = batches_.find(number);
  if (entry == batches_.end())
    return expiry::finished;
  const auto batch = entry->second;
  if (batch->state == transfer::phase::waiting) {
    batch->state = transfer::phase::over;
    batches_.erase(entry);
    return expiry::withdrawn;
  }
  batch->has_expired = true;
  if (!batch->is_read)
    return expire_write(batch, lock);
  // From now on no thread begins to use its parts.
  if (!batch->failure)
    batch->failure = error{ec::deadline_exceeded, {}};
  if (batch->uses > 0)
    return expiry::running;
  add_job({batch, [this, batch](codec_scratch&) { fail_batch(batch, {}); }});
  lock.unlock();
  changed_.notify_all();
  return expiry::finished;
}

/// A write that the store has begun with goes on, since it may become visible at any moment.
serde_core::expiry serde_core::expire_write(const transfer_ptr& batch,
                                            std::unique_lock<std::mutex>& lock) {
  const auto part = batch->open.empty() ? nullptr : batch->open.front();
  // Whoever uses it, or is about to cut a chunk, looks at the deadline again.
  if (batch->uses > 0 || (part == nullptr && batch->next > 0))
    return expiry::running;
  if (const auto call = part == nullptr ? 0 : part->call; call != 0) {
    lock.unlock();
    const auto state = store_->expire(call);
    lock.lock();
    if (state != expiry::withdrawn || batch->state == transfer::phase::over)
      return expiry::running;
  }
  if (part == nullptr || part->first == 0) {
    const auto left = take_off(batch);
    lock.unlock();
    pool_->cancel(batch->number);
    return expiry::withdrawn;
  }
  batch->failure = error{ec::deadline_exceeded, {}};
  add_job({batch, [this, batch](codec_scratch&) { fail_batch(batch, {}); }});
  lock.unlock();
  changed_.notify_all();
  return expiry::finished;
}

backend_health serde_core::corrected(backend_health health) const {
  const auto corrupt = corrupt_.load();
  const auto undecoded = undecoded_.load();
  auto& counters = health.counters;
  counters.hits -= std::min(counters.hits, corrupt + undecoded);
  counters.corrupt += corrupt;
  counters.errors += undecoded + failed_.load();
  return health;
}

bool serde_core::close(std::chrono::nanoseconds grace) {
  const auto end_of_grace = std::chrono::steady_clock::now() + grace;
  auto refused = std::vector<transfer_ptr>{};
  {
    auto lock = std::unique_lock{mutex_};
    is_closing_ = true;
    for (const auto& [number, batch] : batches_)
      if (batch->state == transfer::phase::waiting) {
        batch->state = transfer::phase::over;
        refused.push_back(batch);
      }
    for (const auto& batch : refused)
      batches_.erase(batch->number);
  }
  for (const auto& batch : refused)
    batch->done(std::vector<result<void>>(batch->size, fail(ec::stopping)));
  auto lock = std::unique_lock{mutex_};
  changed_.wait_for(lock, grace, [this] { return is_idle(); });
  lock.unlock();
  const auto left = end_of_grace - std::chrono::steady_clock::now();
  const auto is_closed = store_->close(std::max(left, std::chrono::nanoseconds{0}));
  // From here on the store answers nothing, so the workers come to an end.
  lock.lock();
  changed_.wait(lock, [this] { return jobs_.empty() && busy_ == 0; });
  is_ending_ = true;
  changed_.notify_all();
  // A completion that the store still holds keeps the memory that it may write to.
  auto abandoned = std::vector<std::pair<batch_number, leavings>>{};
  while (!batches_.empty()) {
    const auto batch = batches_.begin()->second;
    abandoned.emplace_back(batch->number, take_off(batch));
  }
  lock.unlock();
  for (const auto& each : abandoned)
    pool_->cancel(each.first);
  return is_closed && abandoned.empty();
}

// -- jobs -------------------------------------------------------------------------

void serde_core::enqueue(const transfer_ptr& batch, std::function<void(codec_scratch&)> run) {
  {
    const auto lock = std::scoped_lock{mutex_};
    if (is_ending_)
      return;
    add_job({batch, std::move(run)});
  }
  changed_.notify_all();
}

void serde_core::add_job(job next) {
  const auto at = next.batch->is_read
                    ? std::ranges::find_if(jobs_, [](const job& x) { return !x.batch->is_read; })
                    : jobs_.end();
  jobs_.insert(at, std::move(next));
}

void serde_core::work() {
  auto scratch = codec_scratch{codec_->options()};
  auto lock = std::unique_lock{mutex_};
  for (;;) {
    changed_.wait(lock, [this] { return is_ending_ || !jobs_.empty(); });
    if (is_ending_)
      return;
    auto next = std::move(jobs_.front());
    jobs_.pop_front();
    ++busy_;
    lock.unlock();
    run(next, scratch);
    // Release what the batch refers to before waiting for the next one.
    next = {};
    lock.lock();
    if (--busy_ == 0 && jobs_.empty())
      changed_.notify_all();
  }
}

/// Exception boundary: turns an exception of a batch's list into a failed batch.
void serde_core::run(job& next, codec_scratch& scratch) {
  auto reason = std::string{"an unknown exception"};
  try {
    next.run(scratch);
    return;
  } catch (const std::exception& thrown) {
    reason = thrown.what();
  } catch (...) {
    reason = "an unknown exception";
  }
  fail_batch(next.batch, {ec::io_failure, "a batch threw: " + reason});
}

// -- evictions --------------------------------------------------------------------

bool serde_core::watch_evictions(storage_backend::eviction_watch watch, bool wants_bytes) {
  if (!watch)
    return store_->watch_evictions({}, wants_bytes);
  // A tier below would keep what fp8 has changed under the name of a lossless object.
  if (wants_bytes && is_lossy())
    return false;
  auto tell = [weak = weak_from_this(), watch = std::move(watch),
               wants_bytes](std::span<const evicted_object> objects) {
    const auto alive = weak.lock();
    if (alive == nullptr)
      return;
    auto told = std::vector<evicted_object>{objects.begin(), objects.end()};
    for (auto& object : told) {
      object.key = alive->codec_->object_name(object.key);
      object.parent = alive->codec_->object_name(object.parent);
    }
    const auto bytes
      = wants_bytes ? alive->decoded(told) : std::vector<std::vector<std::byte>>(told.size());
    for (auto i = size_t{0}; i < told.size(); ++i)
      told[i].bytes = bytes[i];
    watch(told);
  };
  return store_->watch_evictions(std::move(tell), wants_bytes);
}

std::vector<std::vector<std::byte>> serde_core::decoded(std::span<const evicted_object> objects) {
  auto scratch = scratches_.take();
  if (scratch == nullptr)
    scratch = std::make_unique<codec_scratch>(codec_->options());
  auto bytes = std::vector<std::vector<std::byte>>{};
  for (const auto& object : objects)
    bytes.push_back(codec_->decode_whole(object.key, object.bytes, pool_->capacity(), *scratch)
                      .value_or(std::vector<std::byte>{}));
  scratches_.give_back(std::move(scratch));
  return bytes;
}

// -- ends of a batch --------------------------------------------------------------

void serde_core::end_use(const transfer_ptr& batch) {
  auto lock = std::unique_lock{mutex_};
  const auto is_complete = batch->next == batch->size && batch->open.empty();
  if (--batch->uses == 0 && batch->state != transfer::phase::over
      && (batch->failure || is_complete))
    end(batch, lock);
}

void serde_core::fail_batch(const transfer_ptr& batch, error reason) {
  auto lock = std::unique_lock{mutex_};
  if (batch->state == transfer::phase::over)
    return;
  if (!batch->failure)
    batch->failure = std::move(reason);
  if (batch->uses == 0)
    end(batch, lock);
}

serde_core::leavings serde_core::take_off(const transfer_ptr& batch) {
  batch->state = transfer::phase::over;
  batches_.erase(batch->number);
  auto left = leavings{};
  left.open = std::move(batch->open);
  left.done = std::move(batch->done);
  left.progress = std::move(batch->progress);
  left.read_batch = std::move(batch->read_batch);
  left.write_batch = std::move(batch->write_batch);
  for (const auto& part : left.open)
    if (part->call != 0)
      left.calls.push_back(part->call);
  return left;
}

void serde_core::end(const transfer_ptr& batch, std::unique_lock<std::mutex>& lock) {
  const auto left = take_off(batch);
  auto answers = std::move(batch->answers);
  // What is not in `answers` yet was left open.
  answers.resize(batch->size, fail(ec::deadline_exceeded));
  for (auto& answer : answers)
    if (batch->failure && !answer && answer.error().code == ec::deadline_exceeded)
      answer = tl::unexpected{*batch->failure};
  lock.unlock();
  if (batch->failure) {
    pool_->cancel(batch->number);
    for (const auto call : left.calls)
      store_->expire(call);
  }
  left.done(std::move(answers));
}

} // namespace hicache::serde
