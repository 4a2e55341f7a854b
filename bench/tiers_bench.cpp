// What an order of stores costs over its stores alone. A batch is as large as those of a rank; each
// call waits for its answer.

#include "backends/file_backend.hpp"
#include "backends/memory_backend.hpp"
#include "backends/storage_queue.hpp"
#include "backends/tiered/tiered_backend.hpp"

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace hicache;

constexpr size_t object_bytes = size_t{64} << 10;
constexpr size_t batch_objects = 128;
constexpr size_t batches = 16;
constexpr auto no_deadline = time_point::max();

class wall_clock final : public clock_source {
public:
  time_point now() const noexcept override { return std::chrono::steady_clock::now(); }
};

const wall_clock the_clock;

/// A folder that is removed in the end.
class scratch_folder {
public:
  scratch_folder() {
    auto name = (std::filesystem::temp_directory_path() / "hicache-bench-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }

  ~scratch_folder() { std::filesystem::remove_all(path_); }

  scratch_folder(const scratch_folder&) = delete;

  scratch_folder& operator=(const scratch_folder&) = delete;

  const std::string& path() const { return path_; }

private:
  std::string path_;
};

std::unique_ptr<storage_backend> memory_store() {
  return std::make_unique<storage_queue>(make_memory_backend(0, the_clock), 2);
}

std::unique_ptr<storage_backend> file_store(const std::string& folder) {
  return std::make_unique<storage_queue>(make_file_backend({{folder, 0}, 7}, the_clock).value(), 2);
}

std::unique_ptr<storage_backend> tiered(std::unique_ptr<storage_backend> first,
                                        std::unique_ptr<storage_backend> second = nullptr) {
  auto options = tiered_options{};
  // A tier that stays empty, above the one that has all.
  if (second != nullptr) {
    options.tiers.push_back({std::move(first), {{tier_writes::rule::never, 0}, false}});
    options.tiers.push_back({std::move(second), {}});
  } else {
    options.tiers.push_back({std::move(first), {}});
  }
  return make_tiered_backend(std::move(options), the_clock).value();
}

page_key key_of(size_t number) {
  auto key = page_key{};
  auto word = number;
  for (auto& byte : key.bytes) {
    word = word * 0x9e37'79b9'7f4a'7c15ULL + 1;
    byte = static_cast<uint8_t>(word >> 56);
  }
  return key;
}

/// A store, and memory for a batch.
class fixture {
public:
  explicit fixture(std::unique_ptr<storage_backend> store)
    : store_(std::move(store)), memory_(batch_objects * object_bytes, std::byte{1}) {}

  void put(size_t batch) {
    auto writes = std::vector<page_write>{};
    for (auto i = size_t{0}; i < batch_objects; ++i)
      writes.push_back({key_of(batch * batch_objects + i), {}, {part(i)}});
    auto done = std::promise<std::vector<result<void>>>{};
    store_->write(std::move(writes), no_deadline,
                  [&done](auto answer) { done.set_value(std::move(answer)); });
    check(done.get_future().get());
  }

  void get(size_t batch) {
    auto keys = std::vector<page_key>{};
    for (auto i = size_t{0}; i < batch_objects; ++i)
      keys.push_back(key_of(batch * batch_objects + i));
    auto found = std::promise<std::vector<result<store_place>>>{};
    store_->lookup(keys, no_deadline,
                   [&found](auto answer) { found.set_value(std::move(answer)); });
    const auto places = found.get_future().get();
    auto reads = std::vector<page_read>{};
    for (auto i = size_t{0}; i < batch_objects; ++i)
      reads.push_back({keys[i], {part(i)}, places[i].value()});
    auto done = std::promise<std::vector<result<void>>>{};
    store_->read(std::move(reads), no_deadline,
                 [&done](auto answer) { done.set_value(std::move(answer)); }, {});
    check(done.get_future().get());
  }

  void remove(size_t batch) {
    auto keys = std::vector<page_key>{};
    for (auto i = size_t{0}; i < batch_objects; ++i)
      keys.push_back(key_of(batch * batch_objects + i));
    auto done = std::promise<void>{};
    store_->remove(std::move(keys), no_deadline, [&done](const auto&) { done.set_value(); });
    done.get_future().wait();
  }

private:
  std::span<std::byte> part(size_t i) {
    return std::span{memory_}.subspan(i * object_bytes, object_bytes);
  }

  static void check(const std::vector<result<void>>& outcomes) {
    for (const auto& outcome : outcomes)
      if (!outcome)
        std::abort();
  }

  std::unique_ptr<storage_backend> store_;
  std::vector<std::byte> memory_;
};

void count_bytes(benchmark::State& state) {
  const auto bytes = static_cast<double>(state.iterations()) * batch_objects * object_bytes;
  state.counters["bytes"] = benchmark::Counter(bytes, benchmark::Counter::kIsRate);
}

/// Looks up and reads batches, one after the other.
void get(benchmark::State& state, fixture store) {
  for (auto batch = size_t{0}; batch < batches; ++batch)
    store.put(batch);
  auto next = size_t{0};
  for (auto _ : state)
    store.get(next++ % batches);
  count_bytes(state);
}

void put(benchmark::State& state, fixture store) {
  auto next = size_t{0};
  for (auto _ : state) {
    store.put(next % batches);
    state.PauseTiming();
    store.remove(next++ % batches);
    state.ResumeTiming();
  }
  count_bytes(state);
}

void get_memory(benchmark::State& state) {
  get(state, fixture{memory_store()});
}

void get_tiered_memory(benchmark::State& state) {
  get(state, fixture{tiered(memory_store())});
}

void get_file(benchmark::State& state) {
  const auto folder = scratch_folder{};
  get(state, fixture{file_store(folder.path())});
}

void get_tiered_file(benchmark::State& state) {
  const auto folder = scratch_folder{};
  get(state, fixture{tiered(file_store(folder.path()))});
}

void get_file_below_memory(benchmark::State& state) {
  const auto folder = scratch_folder{};
  get(state, fixture{tiered(memory_store(), file_store(folder.path()))});
}

void put_memory(benchmark::State& state) {
  put(state, fixture{memory_store()});
}

void put_tiered_memory(benchmark::State& state) {
  put(state, fixture{tiered(memory_store())});
}

void put_file(benchmark::State& state) {
  const auto folder = scratch_folder{};
  put(state, fixture{file_store(folder.path())});
}

void put_tiered_file(benchmark::State& state) {
  const auto folder = scratch_folder{};
  put(state, fixture{tiered(file_store(folder.path()))});
}

} // namespace

BENCHMARK(get_memory)->UseRealTime();
BENCHMARK(get_tiered_memory)->UseRealTime();
BENCHMARK(get_file)->UseRealTime();
BENCHMARK(get_tiered_file)->UseRealTime();
BENCHMARK(get_file_below_memory)->UseRealTime();
BENCHMARK(put_memory)->UseRealTime();
BENCHMARK(put_tiered_memory)->UseRealTime();
BENCHMARK(put_file)->UseRealTime();
BENCHMARK(put_tiered_file)->UseRealTime();

BENCHMARK_MAIN();
