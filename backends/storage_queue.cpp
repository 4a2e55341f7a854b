#include "backends/storage_queue.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace hicache {

namespace {

/// Exception boundary: turns an exception of the store into a failed batch; the worker continues.
template <class Answer, class Call>
std::vector<Answer> guarded(const std::string& name, size_t size, Call call) {
  auto reason = std::string{};
  try {
    auto answers = call();
    HICACHE_CHECK(answers.size() == size);
    return answers;
  } catch (const std::exception& thrown) {
    reason = thrown.what();
  } catch (...) {
    reason = "an unknown exception";
  }
  return std::vector<Answer>(size, fail(ec::io_failure, name + " threw: " + reason));
}

/// Reads a batch in parts, and reports all but the last one.
std::vector<result<void>> read_in_parts(blocking_store& store, std::span<const page_read> pages,
                                        size_t part_size, time_point deadline,
                                        const storage_backend::read_progress& progress) {
  if (!progress || part_size == 0)
    return store.get(pages, deadline);
  auto answers = std::vector<result<void>>{};
  while (answers.size() < pages.size()) {
    const auto first = answers.size();
    const auto count = std::min(part_size, pages.size() - first);
    auto part = store.get(pages.subspan(first, count), deadline);
    HICACHE_CHECK(part.size() == count);
    if (first + count < pages.size())
      progress(first, part);
    answers.insert(answers.end(), std::make_move_iterator(part.begin()),
                   std::make_move_iterator(part.end()));
  }
  return answers;
}

} // namespace

struct storage_queue::batch {
  /// Calls the store; returns a function that passes the outcome to `done`.
  std::function<std::function<void()>(blocking_store&)> call;
  std::function<void(const error&)> refuse;
};

/// Shared by the queue and its workers. A worker whose call does not return outlives the queue.
struct storage_queue::shared_state {
  std::unique_ptr<blocking_store> store;
  size_t threads = 0;
  mutable std::mutex mutex; // Guards what follows.
  std::condition_variable changed;
  std::map<turn, batch> waiting;
  /// Running calls, and whether they have expired.
  std::map<uint64_t, bool> running;
  uint64_t last_number = 0;
  size_t workers = 0;
  size_t stuck = 0;
  bool is_closing = false;
  bool is_abandoned = false;
};

storage_queue::storage_queue(std::unique_ptr<blocking_store> store, size_t threads)
  : name_(store->name()), capabilities_(store->capabilities()),
    tells_lengths_(store->tells_lengths()), state_(std::make_shared<shared_state>()) {
  state_->store = std::move(store);
  state_->threads = threads;
  const auto lock = std::scoped_lock{state_->mutex};
  for (auto i = size_t{0}; i < threads; ++i)
    start_worker(state_);
}

storage_queue::~storage_queue() {
  close(limits::shutdown_grace);
}

bool storage_queue::close(std::chrono::nanoseconds grace) {
  auto refused = std::map<turn, batch>{};
  {
    const auto lock = std::scoped_lock{state_->mutex};
    if (state_->is_abandoned)
      return false;
    state_->is_closing = true;
    refused.swap(state_->waiting);
  }
  state_->changed.notify_all();
  for (const auto& [at, waiting] : refused)
    waiting.refuse({ec::stopping, {}});
  auto lock = std::unique_lock{state_->mutex};
  if (!state_->changed.wait_for(lock, grace, [this] { return state_->workers == 0; })) {
    state_->is_abandoned = true;
    return false;
  }
  const auto gone = std::move(state_->store);
  lock.unlock();
  return true;
}

template <class Item, class Answer, class Call>
storage_queue::batch_number
storage_queue::submit_items(turn at, store_batch<Item> items, Call call,
                            std::function<void(std::vector<Answer>)> done) {
  const auto size = items.size();
  return submit(
    at, {[name = name_, items = std::move(items), call = std::move(call),
          done](blocking_store& store) -> std::function<void()> {
           auto answers
             = guarded<Answer>(name, items.size(), [&] { return call(store, items.list()); });
           return [done, answers = std::move(answers)]() mutable { done(std::move(answers)); };
         },
         [size, done](const error& reason) {
           done(std::vector<Answer>(size, tl::unexpected{reason}));
         }});
}

bool storage_queue::watch_evictions(eviction_watch watch, bool wants_bytes) {
  return state_->store->watch_evictions(std::move(watch), wants_bytes);
}

bool storage_queue::watch_losses(loss_watch watch) {
  return state_->store->watch_losses(std::move(watch));
}

storage_queue::batch_number storage_queue::lookup(store_batch<page_key> keys, time_point deadline,
                                                  lookup_done done) {
  auto call = [deadline](auto& store, const auto& list) { return store.lookup(list, deadline); };
  return submit_items({batch_class::read, deadline}, std::move(keys), std::move(call),
                      std::move(done));
}

storage_queue::batch_number storage_queue::read(store_batch<page_read> pages, time_point deadline,
                                                pages_done done, read_progress progress) {
  auto call = [deadline, progress = std::move(progress), part = capabilities_.preferred_batch](
                blocking_store& store, const std::vector<page_read>& list) {
    return read_in_parts(store, list, part, deadline, progress);
  };
  return submit_items({batch_class::read, deadline}, std::move(pages), std::move(call),
                      std::move(done));
}

storage_queue::batch_number storage_queue::read_sized(store_batch<page_read> pages,
                                                      time_point deadline, sizes_done done) {
  auto call = [deadline](auto& store, const auto& list) {
    return store.read(list, part_lengths::bounded, deadline);
  };
  return submit_items({batch_class::read, deadline}, std::move(pages), std::move(call),
                      std::move(done));
}

storage_queue::batch_number storage_queue::write(store_batch<page_write> pages, time_point deadline,
                                                 pages_done done) {
  return submit_writes(batch_class::write, std::move(pages), deadline, std::move(done));
}

storage_queue::batch_number storage_queue::promote(store_batch<page_write> pages,
                                                   time_point deadline, pages_done done) {
  return submit_writes(batch_class::promotion, std::move(pages), deadline, std::move(done));
}

storage_queue::batch_number storage_queue::submit_writes(batch_class which,
                                                         store_batch<page_write> pages,
                                                         time_point deadline, pages_done done) {
  auto call = [deadline](auto& store, const auto& list) { return store.set(list, deadline); };
  return submit_items({which}, std::move(pages), std::move(call), std::move(done));
}

storage_queue::batch_number storage_queue::remove(store_batch<page_key> keys, time_point deadline,
                                                  pages_done done) {
  auto call = [deadline](auto& store, const auto& list) { return store.remove(list, deadline); };
  return submit_items({batch_class::write}, std::move(keys), std::move(call), std::move(done));
}

storage_queue::batch_number storage_queue::list(std::string from, time_point deadline,
                                                list_done done) {
  return submit({batch_class::write},
                {[name = name_, from = std::move(from), deadline,
                  done](blocking_store& store) -> std::function<void()> {
                   auto listed = guarded<result<object_list>>(
                     name, 1, [&] { return std::vector{store.list(from, deadline)}; });
                   return [done, listed = std::move(listed)]() mutable {
                     done(std::move(listed.front()));
                   };
                 },
                 [done](const error& reason) { done(tl::unexpected{reason}); }});
}

void storage_queue::health(health_done done) {
  auto call = [done](blocking_store& store) -> std::function<void()> {
    return [done, health = store.health()] { done(health); };
  };
  auto refuse = [done](const error& reason) {
    done({.ok = false, .detail = to_string(reason), .counters = {}, .tiers = {}});
  };
  submit({batch_class::health}, {std::move(call), std::move(refuse)});
}

storage_queue::batch_number storage_queue::submit(turn at, batch next) {
  const auto state = state_;
  auto lock = std::unique_lock{state->mutex};
  at.number = ++state->last_number;
  if (state->threads == 0 && !state->is_closing) {
    ++state->workers; // `close` waits for this thread, too.
    lock.unlock();
    auto answer = next.call(*state->store);
    lock.lock();
    const auto is_abandoned = state->is_abandoned;
    lock.unlock();
    if (!is_abandoned)
      answer();
    answer = {};
    lock.lock();
    --state->workers;
    state->changed.notify_all();
    return at.number;
  }
  const auto is_full = state->waiting.size() >= limits::storage_queue_batches;
  if (!state->is_closing && (at.which == batch_class::health || !is_full)) {
    state->waiting.emplace(at, std::move(next));
    state->changed.notify_all();
    return at.number;
  }
  const auto reason = state->is_closing
                        ? error{ec::stopping, {}}
                        : error{ec::limit_reached, "too many batches wait for " + name_};
  lock.unlock();
  next.refuse(reason);
  return at.number;
}

storage_queue::expiry storage_queue::expire(batch_number number) {
  const auto lock = std::scoped_lock{state_->mutex};
  auto& waiting = state_->waiting;
  if (const auto entry
      = std::ranges::find(waiting, number, [](const auto& x) { return x.first.number; });
      entry != waiting.end()) {
    waiting.erase(entry);
    return expiry::withdrawn;
  }
  const auto call = state_->running.find(number);
  if (call == state_->running.end())
    return expiry::finished;
  if (!std::exchange(call->second, true) && ++state_->stuck <= limits::stuck_calls
      && !state_->is_closing)
    start_worker(state_);
  return expiry::running;
}

void storage_queue::start_worker(const std::shared_ptr<shared_state>& state) {
  ++state->workers;
  // Detached: a thread stuck in the kernel cannot be joined. `close` waits for the others.
  std::thread{[state] { work(state); }}.detach();
}

void storage_queue::work(const std::shared_ptr<shared_state>& state) {
  auto lock = std::unique_lock{state->mutex};
  while (state->workers <= state->threads + state->stuck) {
    state->changed.wait(lock, [&] { return state->is_closing || !state->waiting.empty(); });
    if (state->waiting.empty())
      break;
    auto next = state->waiting.extract(state->waiting.begin());
    const auto number = next.key().number;
    state->running.emplace(number, false);
    lock.unlock();
    auto answer = next.mapped().call(*state->store);
    lock.lock();
    // The receiver of the answer is gone, and perhaps also what the answer refers to.
    while (state->is_abandoned) {
      lock.unlock();
      ::pause();
      lock.lock();
    }
    state->stuck -= state->running.extract(number).mapped() ? 1 : 0;
    lock.unlock();
    answer();
    // Release what the batch refers to before waiting for the next one.
    answer = {};
    next = {};
    lock.lock();
  }
  --state->workers;
  state->changed.notify_all();
}

} // namespace hicache
