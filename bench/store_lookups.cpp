#include "backends/ask.hpp"
#include "base/limits.hpp"
#include "bench/store_actors.hpp"
#include "launch/bench_keys.hpp"
#include "launch/replay_report.hpp"

#include <caf/event_based_actor.hpp>
#include <caf/io/middleman.hpp>
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

constexpr auto loopback = "127.0.0.1";

double seconds_since(steady::time_point begin) {
  return std::chrono::duration<double>(steady::now() - begin).count();
}

steady::duration from_seconds(double seconds) {
  return std::chrono::duration_cast<steady::duration>(std::chrono::duration<double>(seconds));
}

struct fixed_answers_state {
  static inline constexpr auto name = "bench_server";

  explicit fixed_answers_state(caf::event_based_actor*) {}

  /// As an index that holds each page once; made once.
  const caf::message& locate(size_t keys) {
    if (keys != keys_before)
      answer = caf::make_message(
        placements{std::vector<replica_list>(keys, {replica{1, 4096, 1, 4096}}), 0});
    keys_before = keys;
    return answer;
  }

  caf::message answer;
  size_t keys_before = 0;
};

caf::behavior fixed_answers(caf::stateful_actor<fixed_answers_state>* self) {
  return {
    [self](atom::locate, const key_batch& query) -> caf::message {
      return self->state.locate(query.keys.size());
    },
    [](atom::mount, const member_info&) {
      return membership{true, 60000, 0};
    },
    [](atom::publish, const published_pages&) {
      return membership{true, 60000, 0};
    },
  };
}

struct lookup_figures {
  std::vector<double> latency_us;
  uint64_t found = 0;
  std::string failure;

  void count(steady::time_point begin, const placements& answer) {
    latency_us.push_back(1e6 * seconds_since(begin));
    for (const auto& copies : answer.replicas)
      found += copies.empty() ? 0 : 1;
  }
};

struct asker_state {
  static inline constexpr auto name = "bench_asker";

  /// Asks until the time is up, then waits for what is under way.
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
  caf::actor shard;
  std::vector<std::vector<page_key>> batches;
  std::shared_ptr<lookup_figures> figures;
  steady::time_point end;
  size_t next = 0;
  size_t under_way = 0;
};

caf::behavior asker(caf::stateful_actor<asker_state>* self, caf::actor shard,
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

/// One thread of the users of an index: waits for each answer.
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

/// The same by so many threads.
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

// -- what all clients share ---------------------------------------------------

index_client::index_client()
  : config_(std::move(system_config{}.with_network())), system_(config_) {}

index_client::~index_client() = default;

result<std::unique_ptr<index_client>> index_client::connect(const index_address& to) {
  const auto where = parse_endpoint(to.at);
  if (!where)
    return tl::unexpected{where.error()};
  auto client = std::unique_ptr<index_client>{new index_client};
  if (to.is_bare) {
    auto found = client->system_.middleman().remote_actor(where->host, where->port);
    if (!found)
      return fail(ec::peer_unreachable, "nothing answers at " + to.at);
    client->bare_ = std::move(*found);
    return client;
  }
  client->link_ = std::make_unique<index_link>(client->system_, std::vector{*where});
  if (auto connected = client->link_->connect(limits::index_connect_time); !connected)
    return tl::unexpected{connected.error()};
  return client;
}

caf::actor index_client::shard() const {
  if (!link_)
    return bare_;
  const auto view = link_->view();
  return view->is_whole() ? caf::actor_cast<caf::actor>(view->shards.front()) : caf::actor{};
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

result<void> serve_fixed_answers() {
  auto config = system_config{};
  config.with_network();
  auto system = caf::actor_system{config};
  const auto server = system.spawn(fixed_answers);
  const auto port = system.middleman().publish(server, 0, loopback);
  if (!port)
    return fail(ec::io_failure, "cannot listen on " + std::string{loopback});
  std::printf("listening on %s:%u\n", loopback, *port);
  std::fflush(stdout);
  auto self = caf::scoped_actor{system};
  self->wait_for(server);
  return {};
}

result<nlohmann::json> measure_lookups(const ask_options& options) {
  auto client = index_client::connect(options.index);
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
  const auto requests = static_cast<double>(figures->latency_us.size());
  return nlohmann::json{
    {"keys_per_s", requests * static_cast<double>(options.batch) / seconds},
    {"found", figures->found},
    {"latency_us",
     {{"p50", quantile(figures->latency_us, 0.5)}, {"p99", quantile(figures->latency_us, 0.99)}}}};
}

result<void> watch_index(const watch_options& options) {
  auto client = index_client::connect({options.index, false});
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
