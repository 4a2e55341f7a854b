// Benchmark of a node's clients: put, read as copy and read in place, compared with memcpy of the
// same number of bytes in the same run. All but memcpy verify the pages. With --node=PATH it is a
// client of the node at that path, for comparison with clients in other languages.

#include "backends/node_client.hpp"
#include "hicache/system_config.hpp"
#include "launch/program.hpp"
#include "rpc/network.hpp"
#include "runtime/node_host.hpp"

#include <benchmark/benchmark.h>
#include <caf/actor_system.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace hicache;
using namespace std::chrono_literals;

/// Memory of the node, and of the pages that are read repeatedly; larger than CPU caches.
constexpr auto node_bytes = uint64_t{1} << 30;
constexpr auto read_bytes = uint64_t{128} << 20;

/// Bytes per call.
constexpr auto batch_bytes = size_t{8} << 20;

page_key key_of(uint64_t number) {
  auto key = page_key{};
  std::memcpy(key.bytes.data(), &number, sizeof(number));
  return key;
}

/// Emulates a separate client process.
struct client_process {
  system_config config;
  caf::actor_system system{config};
  rpc_network network{system, tls_files{}};
  monotonic_clock clock;
};

struct node_process {
  explicit node_process(const std::string& path, uint64_t bytes = node_bytes)
    : address("unix:" + path) {
    auto options = node_host_options{};
    options.memory_bytes = bytes;
    options.socket = path;
    options.clock = &clock;
    auto started = node_host::start(system, std::move(options));
    if (!started) {
      std::fprintf(stderr, "%s\n", started.error().detail.c_str());
      std::exit(1);
    }
    host = std::move(*started);
  }

  system_config config;
  caf::actor_system system{config};
  monotonic_clock clock;
  std::string address;
  std::unique_ptr<node_host> host;
};

node_client_options options_for(client_process& process, const std::string& address) {
  return {&process.system, process.network.node_connector(), address, {1, 7}, {}, &process.clock};
}

/// A client with a batch of pages and memory for them.
class pages_in_use {
public:
  pages_in_use(const std::string& address, size_t page_bytes)
    : page_bytes_(page_bytes), bytes_(batch_bytes, std::byte{1}),
      client_(options_for(process_, address)) {}

  size_t count() const { return batch_bytes / page_bytes_; }

  std::span<std::byte> page(size_t position) {
    return std::span{bytes_}.subspan(position * page_bytes_, page_bytes_);
  }

  bool put(uint64_t first) {
    auto pages = std::vector<page_write>{};
    for (auto i = size_t{0}; i < count(); ++i)
      pages.push_back({key_of(first + i), {}, {page(i)}});
    return all_of(client_.put(pages, process_.clock.now() + 10s));
  }

  bool get(uint64_t first) {
    auto pages = std::vector<page_read>{};
    for (auto i = size_t{0}; i < count(); ++i)
      pages.push_back({key_of(first + i), {page(i)}});
    return all_of(client_.get(pages, process_.clock.now() + 10s));
  }

  bool view(uint64_t first) {
    const auto seen = client_.view(keys_from(first), false, process_.clock.now() + 10s);
    return seen && std::ranges::none_of(seen->pages(), [](const auto& x) { return x.empty(); });
  }

  bool exist(uint64_t first) {
    const auto found = client_.exists(keys_from(first), process_.clock.now() + 10s);
    return found && std::ranges::all_of(*found, std::identity{});
  }

private:
  std::vector<page_key> keys_from(uint64_t first) const {
    auto keys = std::vector<page_key>{};
    for (auto i = size_t{0}; i < count(); ++i)
      keys.push_back(key_of(first + i));
    return keys;
  }

  static bool all_of(const std::vector<result<void>>& outcomes) {
    return std::ranges::all_of(outcomes, [](const auto& x) { return x.has_value(); });
  }

  client_process process_;
  size_t page_bytes_;
  std::vector<std::byte> bytes_;
  node_client client_;
};

/// Next unused page number.
std::atomic<uint64_t> next_number{1};

void finish(benchmark::State& state) {
  state.counters["bytes"] = benchmark::Counter(
    static_cast<double>(state.iterations()) * batch_bytes, benchmark::Counter::kIsRate);
}

enum class direction { from_memory, to_memory };

/// Baseline: copies page by page between a batch and memory of the size used on the node.
void copy_pages(benchmark::State& state, direction way) {
  const auto page_bytes = static_cast<size_t>(state.range(0));
  const auto is_read = way == direction::from_memory;
  auto batch = std::vector<std::byte>(batch_bytes, std::byte{1});
  auto memory = std::vector<std::byte>(is_read ? read_bytes : node_bytes, std::byte{2});
  auto at = size_t{0};
  for (auto _ : state) {
    for (auto i = size_t{0}; i < batch_bytes; i += page_bytes) {
      auto* const there = memory.data() + at + i;
      auto* const here = batch.data() + i;
      std::memcpy(is_read ? here : there, is_read ? there : here, page_bytes);
    }
    benchmark::DoNotOptimize(batch.data());
    benchmark::DoNotOptimize(memory.data());
    benchmark::ClobberMemory();
    at = (at + batch_bytes) % memory.size();
  }
  finish(state);
}

void put_pages(benchmark::State& state, const std::string& address) {
  auto use = pages_in_use{address, static_cast<size_t>(state.range(0))};
  // Steady state of a long-lived client: all of the memory has been touched, and every put evicts.
  for (auto bytes = uint64_t{0}; bytes < node_bytes; bytes += batch_bytes)
    use.put(next_number.fetch_add(use.count()));
  for (auto _ : state)
    if (!use.put(next_number.fetch_add(use.count()))) {
      state.SkipWithError("not stored");
      break;
    }
  finish(state);
}

template <class Read>
void read_pages(benchmark::State& state, const std::string& address, Read read) {
  auto use = pages_in_use{address, static_cast<size_t>(state.range(0))};
  const auto pages = read_bytes / batch_bytes * use.count();
  const auto first = next_number.fetch_add(pages);
  for (auto number = first; number < first + pages; number += use.count())
    if (!use.put(number))
      return state.SkipWithError("not stored");
  auto at = uint64_t{0};
  for (auto _ : state) {
    if (!read(use, first + at)) {
      state.SkipWithError("not found");
      break;
    }
    at = (at + use.count()) % pages;
  }
  finish(state);
}

/// Time for a client to connect and map the memory.
void attach_client(benchmark::State& state, const std::string& path) {
  const auto node = node_process{path, static_cast<uint64_t>(state.range(0)) << 30};
  for (auto _ : state) {
    state.PauseTiming();
    auto process = std::make_unique<client_process>();
    auto client = std::make_unique<node_client>(options_for(*process, node.address));
    state.ResumeTiming();
    const auto attached = client->connect(process->clock.now() + 10s);
    state.PauseTiming();
    client.reset();
    process.reset();
    if (!attached) {
      state.SkipWithError("not attached");
      break;
    }
    state.ResumeTiming();
  }
}

template <class Measured>
void add(const char* name, std::initializer_list<int> threads, Measured measured) {
  for (const auto count : threads)
    benchmark::RegisterBenchmark(name, measured)
      ->Arg(64 << 10)
      ->Arg(1 << 20)
      ->Threads(count)
      ->UseRealTime();
}

/// Registers the client benchmarks with these numbers of threads.
void add_client(const std::string& address, std::initializer_list<int> threads) {
  add("node_put", threads, [address](benchmark::State& state) { put_pages(state, address); });
  add("node_get", threads, [address](benchmark::State& state) {
    read_pages(state, address, [](pages_in_use& x, uint64_t first) { return x.get(first); });
  });
}

int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv))
    return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

/// Runs as a client of a running node.
int run_at(const std::string& address, int argc, char** argv) {
  add_client(address, {1});
  add("node_exists", {1}, [address](benchmark::State& state) {
    read_pages(state, address, [](pages_in_use& x, uint64_t first) { return x.exist(first); });
  });
  return run(argc, argv);
}

} // namespace

int main(int argc, char** argv) {
  start_logging("warn", 0, 1);
  constexpr auto flag = std::string_view{"--node="};
  if (argc > 1 && std::string_view{argv[1]}.starts_with(flag)) {
    const auto address = "unix:" + std::string{argv[1]}.substr(flag.size());
    argv[1] = argv[0];
    return run_at(address, argc - 1, argv + 1);
  }
  auto folder = std::filesystem::temp_directory_path().string() + "/hicache-node-bench-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    return 1;
  auto code = 0;
  {
    const auto node = node_process{folder + "/socket"};
    add("node_read", {1, 4},
        [](benchmark::State& state) { copy_pages(state, direction::from_memory); });
    add("node_write", {1, 4},
        [](benchmark::State& state) { copy_pages(state, direction::to_memory); });
    add_client(node.address, {1, 4});
    add("node_view", {1, 4}, [&node](benchmark::State& state) {
      read_pages(state, node.address,
                 [](pages_in_use& x, uint64_t first) { return x.view(first); });
    });
    benchmark::RegisterBenchmark(
      "node_attach",
      [path = folder + "/other"](benchmark::State& state) { attach_client(state, path); })
      ->Arg(1)
      ->Arg(8)
      ->Iterations(20)
      ->UseRealTime();
    code = run(argc, argv);
  }
  std::filesystem::remove_all(folder);
  return code;
}
