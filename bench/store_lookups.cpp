#include "backends/ask.hpp"
#include "backends/cluster/index_addresses.hpp"
#include "base/limits.hpp"
#include "bench/store_actors.hpp"
#include "launch/bench_keys.hpp"
#include "launch/replay_report.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

namespace hicache::bench {

namespace {

using steady = std::chrono::steady_clock;

struct asker_state {
  static inline constexpr auto name = "bench_asker";

  /// Sends requests until the time is up, then waits for those outstanding.
  void ask_next() {
    if (steady::now() >= end || !figures->failure.empty()) {
      if (under_way == 0)
        self->quit();
      return;
    }
    ++under_way;
    const auto begin = steady::now();
    auto on_answer = [this, begin](const placements& answer) {
      --under_way;
      figures->count(begin, answer);
      ask_next();
    };
    auto on_error = [this](const caf::error& err) {
      --under_way;
      figures->failure = to_string(from_caf(err));
      ask_next();
    };
    self->request(shard, caf::infinite, atom::locate_v, key_batch{batches[next]})
      .then(on_answer, on_error);
    next = (next + 1) % batches.size();
  }

  explicit asker_state(caf::event_based_actor* owner) : self(owner) {}

  caf::event_based_actor* self;
  index_actor shard;
  std::vector<std::vector<page_key>> batches;
  std::shared_ptr<lookup_figures> figures;
  steady::time_point end;
  size_t next = 0;
  size_t under_way = 0;
};

caf::behavior asker(caf::stateful_actor<asker_state>* self, index_actor shard,
                    std::vector<std::vector<page_key>> batches, const ask_options& options,
                    std::shared_ptr<lookup_figures> figures) {
  auto& state = self->state;
  state.shard = std::move(shard);
  state.batches = std::move(batches);
  state.figures = std::move(figures);
  state.end = steady::now() + from_seconds(options.seconds);
  for (auto i = uint64_t{0}; i < options.outstanding; ++i)
    state.ask_next();
  return {[](atom::tick) {}};
}

/// Blocking client: one thread that waits for each answer.
lookup_figures ask_and_wait(index_client& client, const std::vector<std::vector<page_key>>& batches,
                            size_t next, steady::time_point end) {
  auto figures = lookup_figures{};
  const auto shard = client.shard();
  for (; steady::now() < end; next = (next + 1) % batches.size()) {
    const auto begin = steady::now();
    const auto answer = ask<placements>(client.system(), shard, caf::infinite, atom::locate_v,
                                        key_batch{batches[next]});
    if (!answer) {
      figures.failure = to_string(answer.error());
      break;
    }
    figures.count(begin, *answer);
  }
  return figures;
}

/// The same with several threads.
lookup_figures ask_by_threads(index_client& client,
                              const std::vector<std::vector<page_key>>& batches,
                              const ask_options& options) {
  const auto end = steady::now() + from_seconds(options.seconds);
  auto parts = std::vector<lookup_figures>(options.outstanding);
  {
    auto threads = std::vector<std::jthread>{};
    for (auto i = size_t{0}; i < parts.size(); ++i)
      threads.emplace_back([&, i] {
        parts[i] = ask_and_wait(client, batches, i * batches.size() / parts.size(), end);
      });
  }
  auto all = lookup_figures{};
  for (const auto& part : parts) {
    all.latency_us.insert(all.latency_us.end(), part.latency_us.begin(), part.latency_us.end());
    all.found += part.found;
    if (!part.failure.empty())
      all.failure = part.failure;
  }
  return all;
}

} // namespace

// -- shared by all clients -----------------------------------------------------

nlohmann::json to_json(lookup_figures& figures, uint64_t batch, double seconds) {
  const auto requests = static_cast<double>(figures.latency_us.size());
  return {
    {"keys_per_s", requests * static_cast<double>(batch) / seconds},
    {"found", figures.found},
    {"latency_us",
     {{"p50", quantile(figures.latency_us, 0.5)}, {"p99", quantile(figures.latency_us, 0.99)}}}};
}

index_client::index_client() : system_(config_), network_(system_, {}) {}

index_client::~index_client() = default;

result<std::unique_ptr<index_client>> index_client::connect(const std::string& at) {
  auto addresses = index_addresses::open(at, {});
  if (!addresses)
    return tl::unexpected{addresses.error()};
  auto client = std::unique_ptr<index_client>{new index_client};
  client->link_ = std::make_unique<index_link>(client->system_, client->network_.connector(),
                                               std::move(*addresses));
  if (auto connected = client->link_->connect(limits::index_connect_time); !connected)
    return tl::unexpected{connected.error()};
  return client;
}

index_actor index_client::shard() const {
  const auto view = link_->view();
  return view->is_whole() ? view->shards.front() : index_actor{};
}

std::vector<std::vector<page_key>> key_batches(uint64_t first, uint64_t count, uint64_t batch) {
  auto batches = std::vector<std::vector<page_key>>{};
  for (auto i = uint64_t{0}; i < count; ++i) {
    if (i % batch == 0)
      batches.emplace_back();
    batches.back().push_back(bench_key(first + i));
  }
  return batches;
}

// -- the parts ----------------------------------------------------------------

nlohmann::json measure_memcpy(const copy_options& options) {
  const auto source = std::vector<std::byte>(options.pages * options.bytes, std::byte{0x5a});
  auto target = std::vector<std::byte>(options.batch * options.bytes);
  const auto begin = steady::now();
  const auto end = begin + from_seconds(options.seconds);
  auto copied = uint64_t{0};
  for (; steady::now() < end; copied += options.batch)
    for (auto i = uint64_t{0}; i < options.batch; ++i)
      std::memcpy(target.data() + i * options.bytes,
                  source.data() + (copied + i) % options.pages * options.bytes, options.bytes);
  const auto seconds = seconds_since(begin);
  return {{"gib_per_s", static_cast<double>(copied * options.bytes) / seconds / (1 << 30)}};
}

result<nlohmann::json> measure_lookups(const ask_options& options) {
  if (options.index.is_bare)
    return measure_bare_lookups(options);
  auto client = index_client::connect(options.index.at);
  if (!client)
    return tl::unexpected{client.error()};
  auto& system = (*client)->system();
  const auto batches = key_batches(0, options.keys, options.batch);
  auto figures = std::make_shared<lookup_figures>();
  const auto begin = steady::now();
  if (options.by_threads) {
    *figures = ask_by_threads(**client, batches, options);
  } else {
    auto self = caf::scoped_actor{system};
    self->wait_for(system.spawn(asker, (*client)->shard(), batches, options, figures));
  }
  const auto seconds = seconds_since(begin);
  if (!figures->failure.empty())
    return fail(ec::peer_unreachable, figures->failure);
  return to_json(*figures, options.batch, seconds);
}

result<void> watch_index(const watch_options& options) {
  auto client = index_client::connect(options.index);
  if (!client)
    return tl::unexpected{client.error()};
  auto& system = (*client)->system();
  const auto sample = key_batch{key_batches(0, options.sample, options.sample).front()};
  constexpr auto patience = caf::timespan{std::chrono::seconds{5}};
  auto last = std::pair<uint64_t, uint64_t>{};
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds{1})) {
    auto now = std::pair<uint64_t, uint64_t>{};
    if (const auto shard = (*client)->shard()) {
      if (const auto status
          = ask<index_status>(system, shard, patience, atom::status_v, status_query{}))
        now.first = status->keys;
      if (const auto answer = ask<placements>(system, shard, patience, atom::locate_v, sample))
        now.second = answer->replicas.size() - std::ranges::count(answer->replicas, replica_list{});
    }
    if (now == std::exchange(last, now))
      continue;
    const auto line = nlohmann::json{
      {"time", std::chrono::duration<double>(steady::now().time_since_epoch()).count()},
      {"keys", now.first},
      {"found", now.second}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
}

} // namespace hicache::bench
