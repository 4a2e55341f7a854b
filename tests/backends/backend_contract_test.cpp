#include "backends/file_backend.hpp"
#include "backends/memory_backend.hpp"
#include "backends/storage_queue.hpp"
#include "messages/page_header.hpp"
#include "tests/backends/backend_contract.hpp"
#include "tests/backends/temporary_folder.hpp"

#include <future>

namespace hicache::test {
namespace {

opened_backend open_memory(const clock_source& clock, room size) {
  return {nullptr, make_memory_backend(size.pages * size.page_bytes, clock)};
}

opened_backend open_file(const clock_source& clock, room size) {
  const auto folder = std::make_shared<temporary_folder>();
  const auto max_bytes = size.pages * (size.page_bytes + page_header_bytes);
  auto store = make_file_backend({{folder->path(), max_bytes}, 7}, clock);
  return {folder, std::move(store.value())};
}

/// A store whose calls go through a queue and wait for the answer.
class queued_backend final : public storage_backend {
public:
  queued_backend(std::unique_ptr<storage_backend> store, size_t threads)
    : queue_(std::move(store), threads) {}

  std::string name() const override { return "queued"; }

  std::vector<bool> exists(std::span<const page_key> keys, time_point deadline) override {
    auto answer = std::promise<std::vector<bool>>{};
    queue_.submit_exists({keys.begin(), keys.end()}, deadline,
                         [&](auto found) { answer.set_value(std::move(found)); });
    return answer.get_future().get();
  }

  std::vector<result<void>> get(std::span<const page_read> pages, time_point deadline) override {
    return wait([&](auto done) {
      queue_.submit_get({pages.begin(), pages.end()}, deadline, std::move(done));
    });
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point deadline) override {
    return wait([&](auto done) {
      queue_.submit_set({pages.begin(), pages.end()}, deadline, std::move(done));
    });
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point deadline) override {
    return wait([&](auto done) {
      queue_.submit_remove({keys.begin(), keys.end()}, deadline, std::move(done));
    });
  }

  backend_health health() override {
    auto answer = std::promise<backend_health>{};
    queue_.submit_health([&](auto health) { answer.set_value(health); });
    return answer.get_future().get();
  }

private:
  template <class Submit>
  static std::vector<result<void>> wait(Submit submit) {
    auto answer = std::promise<std::vector<result<void>>>{};
    submit([&](auto results) { answer.set_value(std::move(results)); });
    return answer.get_future().get();
  }

  storage_queue queue_;
};

backend_factory queued(std::string name, opened_backend (*open)(const clock_source&, room),
                       size_t threads) {
  return {std::move(name), [open, threads](const clock_source& clock, room size) {
            auto opened = open(clock, size);
            opened.store = std::make_unique<queued_backend>(std::move(opened.store), threads);
            return opened;
          }};
}

INSTANTIATE_TEST_SUITE_P(Stores, BackendContractTest,
                         testing::Values(backend_factory{"memory", open_memory},
                                         backend_factory{"file", open_file},
                                         queued("memory_behind_queue", open_memory, 2),
                                         queued("file_behind_queue", open_file, 2),
                                         queued("file_behind_inline_queue", open_file, 0)),
                         [](const auto& chosen) { return chosen.param.name; });

} // namespace
} // namespace hicache::test
