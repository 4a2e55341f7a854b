#pragma once

#include "backends/blocking_store.hpp"
#include "hicache/storage_backend.hpp"

#include <future>
#include <memory>
#include <utility>

namespace hicache::test {

/// Calls an asynchronous store and waits for its answers.
class waiting_store final : public blocking_store {
public:
  explicit waiting_store(std::unique_ptr<storage_backend> store) : store_(std::move(store)) {}

  storage_backend& backend() { return *store_; }

  std::string name() const override { return store_->name(); }

  store_capabilities capabilities() const override { return store_->capabilities(); }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override {
    auto found = std::vector<bool>{};
    for (const auto& place : lookup(keys, deadline))
      found.push_back(place.has_value());
    return found;
  }

  std::vector<result<store_place>> lookup(std::span<const page_key> keys,
                                          time_point deadline) override {
    return wait<std::vector<result<store_place>>>(
      [&](auto done) { store_->lookup(list_of(keys), deadline, done); });
  }

  std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) override {
    return wait<outcomes>([&](auto done) { store_->read(list_of(pages), deadline, done, {}); });
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override {
    return wait<outcomes>([&](auto done) { store_->write(list_of(pages), deadline, done); });
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override {
    return wait<outcomes>([&](auto done) { store_->remove(list_of(keys), deadline, done); });
  }

  bool watch_losses(storage_backend::loss_watch watch) override {
    return store_->watch_losses(std::move(watch));
  }

  result<object_list> list(const std::string& from, time_point deadline) override {
    return wait<result<object_list>>([&](auto done) { store_->list(from, deadline, done); });
  }

  backend_health health() override {
    return wait<backend_health>([&](auto done) { store_->health(done); });
  }

  /// The answer to a batch.
  /// @param submit Submits it with the completion that it is given.
  template <class Answer, class Submit>
  static Answer wait(Submit submit) {
    auto answer = std::promise<Answer>{};
    submit([&](Answer x) { answer.set_value(std::move(x)); });
    return answer.get_future().get();
  }

private:
  using outcomes = std::vector<result<void>>;

  template <class T>
  static std::vector<T> list_of(std::span<const T> items) {
    return {items.begin(), items.end()};
  }

  std::unique_ptr<storage_backend> store_;
};

} // namespace hicache::test
