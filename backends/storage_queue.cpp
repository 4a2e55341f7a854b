#include "backends/storage_queue.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"

#include <exception>
#include <utility>

namespace hicache {

namespace {

std::vector<result<void>> all_failed(size_t count, const error& reason) {
  return std::vector<result<void>>(count, tl::unexpected{reason});
}

/// The one place where a store's exceptions end: its batch has failed, the worker goes on.
template <class Call>
auto guarded(const storage_backend& backend, Call call, size_t pages) {
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
    return all_failed(pages, {ec::io_failure, backend.name() + " threw: " + reason});
}

} // namespace

storage_queue::storage_queue(std::unique_ptr<storage_backend> backend, size_t threads)
  : backend_(std::move(backend)) {
  HICACHE_CHECK(backend_ != nullptr);
  for (auto i = size_t{0}; i < threads; ++i)
    workers_.emplace_back([this] { work(); });
}

storage_queue::~storage_queue() {
  auto refused = std::deque<batch>{};
  {
    const auto lock = std::scoped_lock{mutex_};
    closing_ = true;
    refused.swap(waiting_);
  }
  changed_.notify_all();
  for (const auto& waiting : refused)
    waiting.refuse({ec::stopping, {}});
}

void storage_queue::submit_exists(std::vector<page_key> keys, time_point deadline,
                                  exists_callback done) {
  const auto count = keys.size();
  submit({[this, keys = std::move(keys), deadline, done] {
            done(guarded(
              *backend_, [&] { return backend_->exists(keys, deadline); }, keys.size()));
          },
          [count, done](const error&) { done(std::vector<bool>(count, false)); }});
}

void storage_queue::submit_get(std::vector<page_read> pages, time_point deadline,
                               pages_callback done) {
  const auto count = pages.size();
  submit({[this, pages = std::move(pages), deadline, done] {
            done(guarded(
              *backend_, [&] { return backend_->get(pages, deadline); }, pages.size()));
          },
          [count, done](const error& reason) { done(all_failed(count, reason)); }});
}

void storage_queue::submit_set(std::vector<page_write> pages, time_point deadline,
                               pages_callback done) {
  const auto count = pages.size();
  submit({[this, pages = std::move(pages), deadline, done] {
            done(guarded(
              *backend_, [&] { return backend_->set(pages, deadline); }, pages.size()));
          },
          [count, done](const error& reason) { done(all_failed(count, reason)); }});
}

void storage_queue::submit_remove(std::vector<page_key> keys, time_point deadline,
                                  pages_callback done) {
  const auto count = keys.size();
  submit({[this, keys = std::move(keys), deadline, done] {
            done(guarded(
              *backend_, [&] { return backend_->remove(keys, deadline); }, keys.size()));
          },
          [count, done](const error& reason) { done(all_failed(count, reason)); }});
}

void storage_queue::submit(batch next) {
  if (workers_.empty())
    return next.run();
  auto reason = error{ec::stopping, {}};
  {
    const auto lock = std::scoped_lock{mutex_};
    if (!closing_ && waiting_.size() < limits::storage_queue_batches) {
      waiting_.push_back(std::move(next));
      changed_.notify_one();
      return;
    }
    if (!closing_)
      reason = {ec::limit_reached, "too many batches wait for " + backend_->name()};
  }
  next.refuse(reason);
}

void storage_queue::work() {
  auto lock = std::unique_lock{mutex_};
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
    if (waiting_.empty())
      return;
    auto next = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    next.run();
    // What the batch holds on to is released before the next one is waited for.
    next = {};
    lock.lock();
  }
}

} // namespace hicache
