// hicache-bench: benchmarks of the cluster store and of copies between L1 and L2. The store's
// putter, getter and index are separate processes.

#include "base/limits.hpp"
#include "base/try.hpp"
#include "base/units.hpp"
#include "hicache/system_config.hpp"
#include "launch/bench_keys.hpp"
#include "launch/bench_transfer.hpp"
#include "launch/program.hpp"
#include "launch/replay_report.hpp"
#include "launch/stop_signal.hpp"
#include "runtime/cluster_member.hpp"
#include "runtime/network_flags.hpp"
#include "runtime/setting_flags.hpp"

#include <caf/actor_system.hpp>
#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdio>
#include <thread>

namespace {

using namespace hicache;

struct store_flags {
  std::string index = "127.0.0.1:7766";
  std::string op = "get";
  uint64_t value_bytes = uint64_t{1} << 20;
  uint64_t batch = 16;
  uint64_t threads = 1;
  double seconds = 5;
  uint64_t keys = 256;
  uint64_t segment_bytes = uint64_t{1} << 30;
  std::string linger = "0s";
  uint32_t replicas = 1;
  std::string host;
  bool remote = false;
  bool json = false;
  tls_files tls;
};

/// Result of one thread.
struct thread_result {
  uint64_t ops = 0;
  uint64_t keys = 0;
  uint64_t errors = 0;
  std::vector<double> latency_us;
};

void add_store_flags(CLI::App& app, store_flags& flags) {
  app.option_defaults()->always_capture_default();
  add_index_flag(app, flags.index);
  app
    .add_option("--op", flags.op,
                "put: store new keys in this process's segment; get, exists: ask for the keys that "
                "a putter stored")
    ->check(CLI::IsMember({"put", "get", "exists"}));
  add_bytes_flag(app, "--value-size", flags.value_bytes, "bytes of each value");
  app.add_option("--batch", flags.batch, "keys per call")->check(CLI::Range(1, 4096));
  app.add_option("--threads", flags.threads, "threads that call at once")
    ->check(CLI::Range(1, 256));
  app.add_option("--seconds", flags.seconds, "how long to measure")->check(CLI::PositiveNumber);
  app
    .add_option(
      "--keys", flags.keys,
      "get, exists: keys 0 to N-1 are asked for; put: the first N keys are stored last, so that "
      "they are there for a getter")
    ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 32));
  add_bytes_flag(app, "--segment-size", flags.segment_bytes, "put: memory to export");
  app
    .add_option("--replicas", flags.replicas,
                "put: copies of each value, on members of different hosts; this one has the first")
    ->check(CLI::Range(size_t{1}, limits::replicas_per_key));
  app.add_option("--host", flags.host,
                 "put: the machine that this process counts as; by default its name");
  app
    .add_option("--linger", flags.linger,
                "put: serve the values for this long afterwards, or forever")
    ->type_name("TIME");
  app.add_flag(
    "--remote", flags.remote,
    "get, and a lingering put that takes copies: read by the network although the values are on "
    "this machine");
  app.add_flag("--json", flags.json, "print one JSON object and nothing else");
  add_tls_flags(app, flags.tls);
}

/// Calls the store batch by batch until `end`.
/// @param known The keys that a getter reads.
thread_result measure(blocking_store& store, const store_flags& flags,
                      const std::vector<page_key>& known, std::atomic<uint64_t>& next_key,
                      std::chrono::steady_clock::time_point end) {
  auto outcome = thread_result{};
  const auto putting = flags.op == "put";
  const auto looking = flags.op == "exists";
  auto bytes = std::vector<std::byte>(looking ? 0 : flags.batch * flags.value_bytes);
  while (std::chrono::steady_clock::now() < end) {
    const auto first = next_key.fetch_add(flags.batch);
    auto keys = std::vector<page_key>{};
    auto reads = std::vector<page_read>{};
    auto writes = std::vector<page_write>{};
    for (auto i = uint64_t{0}; i < flags.batch; ++i) {
      // Puts use keys beyond those of the getters, which are stored once, at the end.
      const auto key
        = putting ? bench_key(flags.keys + first + i) : known[(first + i) % known.size()];
      keys.push_back(key);
      if (looking)
        continue;
      const auto part = std::span{bytes}.subspan(i * flags.value_bytes, flags.value_bytes);
      reads.push_back({key, {part}});
      writes.push_back({key, {}, {part}});
    }
    const auto begin = std::chrono::steady_clock::now();
    const auto deadline = begin + std::chrono::seconds{10};
    if (looking) {
      for (const auto here : store.exists(keys, deadline))
        outcome.errors += here ? 0 : 1;
    } else {
      for (const auto& page : putting ? store.set(writes, deadline) : store.get(reads, deadline))
        outcome.errors += page ? 0 : 1;
    }
    outcome.latency_us.push_back(
      std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    ++outcome.ops;
    outcome.keys += flags.batch;
  }
  return outcome;
}

/// Stores the keys that getters read.
uint64_t store_keys(blocking_store& store, const store_flags& flags) {
  auto value = std::vector<std::byte>(flags.value_bytes, std::byte{0x5a});
  auto errors = uint64_t{0};
  for (auto first = uint64_t{0}; first < flags.keys; first += flags.batch) {
    auto writes = std::vector<page_write>{};
    for (auto i = first; i < std::min(first + flags.batch, flags.keys); ++i)
      writes.push_back({bench_key(i), {}, {std::span<const std::byte>{value}}});
    for (const auto& page :
         store.set(writes, std::chrono::steady_clock::now() + std::chrono::seconds{10}))
      errors += page ? 0 : 1;
  }
  return errors;
}

nlohmann::json report(const store_flags& flags, const thread_result& all, double seconds) {
  const auto bytes = flags.op == "exists" ? 0 : (all.keys - all.errors) * flags.value_bytes;
  return {{"op", flags.op},
          {"value_size", flags.value_bytes},
          {"batch", flags.batch},
          {"threads", flags.threads},
          {"ops", all.ops},
          {"bytes", bytes},
          {"seconds", seconds},
          {"gib_per_s", static_cast<double>(bytes) / seconds / (1 << 30)},
          {"keys_per_s", static_cast<double>(all.keys) / seconds},
          {"latency_us",
           {{"p50", quantile(all.latency_us, 0.5)},
            {"p90", quantile(all.latency_us, 0.9)},
            {"p99", quantile(all.latency_us, 0.99)}}},
          {"errors", all.errors}};
}

thread_result sum_of(const std::vector<thread_result>& results) {
  auto all = thread_result{};
  for (const auto& one : results) {
    all.ops += one.ops;
    all.keys += one.keys;
    all.errors += one.errors;
    all.latency_us.insert(all.latency_us.end(), one.latency_us.begin(), one.latency_us.end());
  }
  return all;
}

void print(const store_flags& flags, const thread_result& all, double seconds) {
  const auto figures = report(flags, all, seconds);
  if (flags.json)
    std::printf("%s\n", figures.dump().c_str());
  else
    std::printf("%s of %s, batch %lu, %lu threads: %.2f GiB/s, %.0f keys/s, median %.0f us, p99 "
                "%.0f us, %lu errors\n",
                flags.op.c_str(), format_bytes(flags.value_bytes).c_str(), flags.batch,
                flags.threads, figures["gib_per_s"].get<double>(),
                figures["keys_per_s"].get<double>(), figures["latency_us"]["p50"].get<double>(),
                figures["latency_us"]["p99"].get<double>(), all.errors);
  std::fflush(stdout);
}

result<int> bench_store(const store_flags& flags, const stop_signal& stop) {
  start_logging("warn", 0, 1);
  const auto linger = flags.linger == "forever" ? result<duration>{std::chrono::hours{24 * 365}}
                                                : parse_duration(flags.linger);
  if (!linger)
    return fail(ec::invalid_argument, "--linger: " + linger.error().detail + ", or forever");
  const auto putting = flags.op == "put";
  const auto clock = monotonic_clock{};
  HICACHE_TRY(flags.tls.check());
  auto config = system_config{};
  auto system = caf::actor_system{config};
  auto options = cluster_member_options{};
  options.index = flags.index;
  options.segment_bytes = putting ? flags.segment_bytes : 0;
  options.object_bytes = flags.value_bytes;
  options.fingerprint = fingerprint_of(bench_fingerprint);
  options.replicas = flags.replicas;
  options.host = flags.host;
  options.listen_host = "127.0.0.1";
  options.tls = flags.tls;
  options.path = flags.remote ? read_path::remote : read_path::automatic;
  options.clock = &clock;
  auto member = HICACHE_TRY(cluster_member::join(system, std::move(options)));
  auto store = member->open();
  // Precomputed, because hashing takes longer than the lookup.
  auto known = std::vector<page_key>{};
  for (auto i = uint64_t{0}; !putting && i < flags.keys; ++i)
    known.push_back(bench_key(i));
  auto next_key = std::atomic<uint64_t>{0};
  auto results = std::vector<thread_result>(flags.threads);
  const auto begin = std::chrono::steady_clock::now();
  const auto end = begin
                   + std::chrono::duration_cast<std::chrono::nanoseconds>(
                     std::chrono::duration<double>(flags.seconds));
  {
    auto threads = std::vector<std::jthread>{};
    for (auto& outcome : results)
      threads.emplace_back([&] { outcome = measure(*store, flags, known, next_key, end); });
  }
  const auto seconds
    = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  auto all = sum_of(results);
  if (putting)
    all.errors += store_keys(*store, flags);
  print(flags, all, seconds);
  if (putting)
    stop.wait_for(*linger);
  return all.errors == 0 ? exit_ok : exit_failed;
}

} // namespace

int main(int argc, char** argv) {
  const auto stop = stop_signal{};
  auto flags = store_flags{};
  auto app = CLI::App{"Measures hicache.", "hicache-bench"};
  app.require_subcommand(1);
  auto* store = app.add_subcommand("store", "puts, gets or looks up values in the cluster store");
  add_store_flags(*store, flags);
  auto copies = transfer_flags{};
  auto* transfer = app.add_subcommand("transfer", "copies pages between L1 and L2");
  add_transfer_flags(*transfer, copies);
  return run_program(app, argc, argv,
                     [&] { return *transfer ? bench_transfer(copies) : bench_store(flags, stop); });
}
