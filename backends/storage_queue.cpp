#include "backends/storage_queue.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace hicache {

namespace {

std::vector<result<void>> all_failed(size_t count, const error& reason) {
  return std::vector<result<void>>(count, tl::unexpected{reason});
}

/// The one place where a store's exceptions end: its batch has failed, the worker goes on.
template <class Call>
auto guarded(const std::string& name, Call call, size_t pages) {
  auto reason = std::string{};
  try {
    auto answers = call();
    HICACHE_CHECK(answers.size() == pages);
    return answers;
  } catch (const std::exception& thrown) {
    reason = thrown.what();
  } catch (...) {
    reason = "an unknown exception";
  }
  if constexpr (std::is_same_v<decltype(call()), std::vector<bool>>)
    return std::vector<bool>(pages, false);
  else
    return all_failed(pages, {ec::io_failure, name + " threw: " + reason});
}

} // namespace

struct storage_queue::batch {
  /// Calls the store; what it returns tells the outcome to whoever submitted the batch.
  std::function<std::function<void()>(storage_backend&)> call;
  std::function<void(const error&)> refuse;
  bool is_urgent = false;
  uint64_t number = 0;
};

/// What workers share with the queue, which a worker that does not return outlives.
struct storage_queue::shared_state {
  std::unique_ptr<storage_backend> backend;
  size_t threads = 0;
  mutable std::mutex mutex; // Guards what follows.
  std::condition_variable changed;
  std::deque<batch> waiting;
  /// Calls under way, and whether they have expired.
  std::map<uint64_t, bool> running;
  uint64_t last_number = 0;
  size_t workers = 0;
  size_t stuck = 0;
  bool is_closing = false;
  bool is_abandoned = false;
};

storage_queue::storage_queue(std::unique_ptr<storage_backend> backend, size_t threads)
  : name_(backend->name()), state_(std::make_shared<shared_state>()) {
  state_->backend = std::move(backend);
  state_->threads = threads;
  const auto lock = std::scoped_lock{state_->mutex};
  for (auto i = size_t{0}; i < threads; ++i)
    start_worker(state_);
}

storage_queue::~storage_queue() {
  close(limits::shutdown_grace);
}

bool storage_queue::close(std::chrono::nanoseconds grace) {
  auto refused = std::deque<batch>{};
  {
    const auto lock = std::scoped_lock{state_->mutex};
    if (state_->is_abandoned)
      return false;
    state_->is_closing = true;
    refused.swap(state_->waiting);
  }
  state_->changed.notify_all();
  for (const auto& waiting : refused)
    waiting.refuse({ec::stopping, {}});
  auto lock = std::unique_lock{state_->mutex};
  if (!state_->changed.wait_for(lock, grace, [this] { return state_->workers == 0; })) {
    state_->is_abandoned = true;
    return false;
  }
  const auto gone = std::move(state_->backend);
  lock.unlock();
  return true;
}

uint64_t storage_queue::submit_exists(std::vector<page_key> keys, time_point deadline,
                                      exists_callback done) {
  const auto count = keys.size();
  return submit({[name = name_, keys = std::move(keys), deadline, done](storage_backend& backend) {
                   auto found = guarded(
                     name, [&] { return backend.exists(keys, deadline); }, keys.size());
                   return [done, found = std::move(found)] { done(found); };
                 },
                 [count, done](const error&) { done(std::vector<bool>(count, false)); }});
}

uint64_t storage_queue::submit_get(std::vector<page_read> pages, time_point deadline,
                                   pages_callback done) {
  const auto count = pages.size();
  return submit(
    {[name = name_, pages = std::move(pages), deadline, done](storage_backend& backend) {
       auto answers = guarded(
         name, [&] { return backend.get(pages, deadline); }, pages.size());
       return [done, answers = std::move(answers)] { done(answers); };
     },
     [count, done](const error& reason) { done(all_failed(count, reason)); }});
}

uint64_t storage_queue::submit_set(std::vector<page_write> pages, time_point deadline,
                                   pages_callback done) {
  const auto count = pages.size();
  return submit(
    {[name = name_, pages = std::move(pages), deadline, done](storage_backend& backend) {
       auto answers = guarded(
         name, [&] { return backend.set(pages, deadline); }, pages.size());
       return [done, answers = std::move(answers)] { done(answers); };
     },
     [count, done](const error& reason) { done(all_failed(count, reason)); }});
}

uint64_t storage_queue::submit_remove(std::vector<page_key> keys, time_point deadline,
                                      pages_callback done) {
  const auto count = keys.size();
  return submit({[name = name_, keys = std::move(keys), deadline, done](storage_backend& backend) {
                   auto answers = guarded(
                     name, [&] { return backend.remove(keys, deadline); }, keys.size());
                   return [done, answers = std::move(answers)] { done(answers); };
                 },
                 [count, done](const error& reason) { done(all_failed(count, reason)); }});
}

uint64_t storage_queue::submit_health(health_callback done) {
  return submit({[done](storage_backend& backend) {
                   return [done, health = backend.health()] { done(health); };
                 },
                 [](const error&) {}, true});
}

uint64_t storage_queue::submit(batch next) {
  auto lock = std::unique_lock{state_->mutex};
  const auto number = next.number = ++state_->last_number;
  if (state_->threads == 0 && !state_->is_closing) {
    lock.unlock();
    next.call (*state_->backend)();
    return number;
  }
  const auto is_full = state_->waiting.size() >= limits::storage_queue_batches;
  if (!state_->is_closing && (next.is_urgent || !is_full)) {
    auto& waiting = state_->waiting;
    waiting.insert(next.is_urgent ? waiting.begin() : waiting.end(), std::move(next));
    state_->changed.notify_all();
    return number;
  }
  const auto reason = state_->is_closing
                        ? error{ec::stopping, {}}
                        : error{ec::limit_reached, "too many batches wait for " + name_};
  lock.unlock();
  next.refuse(reason);
  return number;
}

storage_queue::expiry storage_queue::expire(uint64_t number) {
  const auto lock = std::scoped_lock{state_->mutex};
  auto& waiting = state_->waiting;
  if (const auto entry = std::ranges::find(waiting, number, &batch::number);
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

size_t storage_queue::stuck() const {
  const auto lock = std::scoped_lock{state_->mutex};
  return state_->stuck;
}

void storage_queue::start_worker(const std::shared_ptr<shared_state>& state) {
  ++state->workers;
  // Detached: nobody can wait for a thread that the kernel does not let go. `close` waits for those
  // that end.
  std::thread{[state] { work(state); }}.detach();
}

void storage_queue::work(const std::shared_ptr<shared_state>& state) {
  auto lock = std::unique_lock{state->mutex};
  while (state->workers <= state->threads + state->stuck) {
    state->changed.wait(lock, [&] { return state->is_closing || !state->waiting.empty(); });
    if (state->waiting.empty())
      break;
    auto next = std::move(state->waiting.front());
    state->waiting.pop_front();
    state->running.emplace(next.number, false);
    lock.unlock();
    auto answer = next.call(*state->backend);
    lock.lock();
    // Whom the answer is for is gone, and perhaps what it refers to.
    while (state->is_abandoned) {
      lock.unlock();
      ::pause();
      lock.lock();
    }
    state->stuck -= state->running.extract(next.number).mapped() ? 1 : 0;
    lock.unlock();
    answer();
    // What the batch holds on to is released before the next one is waited for.
    answer = {};
    next = {};
    lock.lock();
  }
  --state->workers;
  state->changed.notify_all();
}

} // namespace hicache
