#include "actors/backup.hpp"
#include "actors/prefetcher.hpp"
#include "actors/rank_reduction.hpp"
#include "actors/storage.hpp"
#include "actors/tree.hpp"
#include "backends/memory_backend.hpp"
#include "backends/storage_queue.hpp"
#include "base/check.hpp"
#include "base/limits.hpp"
#include "bench/step_rows.hpp"
#include "cache/hash/page_hash.hpp"
#include "hicache/rank_reducer.hpp"
#include "hicache/system_config.hpp"

#include <caf/scoped_actor.hpp>

#include <algorithm>
#include <atomic>
#include <memory>
#include <semaphore>
#include <thread>
#include <utility>

namespace hicache::bench {

namespace {

constexpr auto rounds = 9;
constexpr auto naming_rounds = 51;
constexpr auto steps_per_round = 20;
constexpr auto long_prompt = size_t{1} << 20;
constexpr uint32_t pages = 4096;
constexpr size_t workers = 2; // storage_config::threads
constexpr auto latency = std::chrono::milliseconds{1};
constexpr auto deadline = std::chrono::hours{1};

/// 16 KiB per page.
constexpr auto shape = pool_shape{attention_kind::mha, 2, 1, 128, 128, 2, 16, 0};

constexpr auto fingerprint = "bench";
constexpr auto shard = "heads 0";

/// In-memory store that adds a millisecond to each exists and get.
class slow_backend final : public blocking_store {
public:
  explicit slow_backend(std::unique_ptr<blocking_store> inner) : inner_(std::move(inner)) {}

  std::string name() const override { return "slow"; }

  std::vector<bool> exists(std::span<const page_key> keys, time_point until) override {
    std::this_thread::sleep_for(latency);
    return inner_->exists(keys, until);
  }

  std::vector<result<void>> get(std::span<const page_read> list, time_point until) override {
    std::this_thread::sleep_for(latency);
    return inner_->get(list, until);
  }

  std::vector<result<void>> set(std::span<const page_write> list, time_point until) override {
    return inner_->set(list, until);
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point until) override {
    return inner_->remove(keys, until);
  }

  backend_health health() override { return inner_->health(); }

private:
  std::unique_ptr<blocking_store> inner_;
};

/// A store that holds the pages of one prompt, and the L2 memory for them.
class store {
public:
  store() : geometry(shape, host_layout::page_first, pages + 1), memory(geometry.total_bytes()) {
    auto all = std::vector<token_id>(size_t{pages} * shape.page_size);
    for (size_t i = 0; i < all.size(); ++i)
      all[i] = static_cast<token_id>(i);
    for (const auto& key : hash_pages(all, shape.page_size, nullptr))
      names.push_back(object_key(key, object_mask(fingerprint, shard)));
    tokens = std::make_shared<const std::vector<token_id>>(std::move(all));
    auto inner = make_memory_backend(0, clock);
    for (size_t i = 0; i < names.size(); ++i) {
      const auto write = page_write{names[i], {}, {page(static_cast<page_index>(i + 1))}};
      HICACHE_CHECK(inner->set({&write, 1}, clock.now() + deadline).front());
    }
    queue
      = std::make_unique<storage_queue>(std::make_unique<slow_backend>(std::move(inner)), workers);
  }

  std::span<std::byte> page(page_index number) {
    const auto runs = geometry.object_runs(number, geometry.all_heads());
    HICACHE_CHECK(runs.size() == 1);
    return {memory.data() + runs.front().offset, runs.front().length};
  }

  monotonic_clock clock;
  pool_geometry geometry;
  std::vector<std::byte> memory;
  token_buffer tokens;
  std::vector<page_key> names;
  std::unique_ptr<storage_queue> queue;
};

/// The store alone: reads all pages in a prefetch's batch size and number of batches in flight.
/// @returns microseconds
double read_all(store& from) {
  auto next = std::atomic<size_t>{0};
  auto finished = std::counting_semaphore<>{0};
  auto read_more = std::function<void()>{};
  read_more = [&] {
    const auto first = next.fetch_add(limits::storage_batch_pages);
    if (first >= from.names.size())
      return finished.release();
    auto reads = std::vector<page_read>{};
    for (auto i = first; i < std::min(first + limits::storage_batch_pages, from.names.size()); ++i)
      reads.push_back({from.names[i], {from.page(static_cast<page_index>(i + 1))}});
    from.queue->read(std::move(reads), from.clock.now() + deadline,
                     [&read_more](const std::vector<result<void>>& outcome) {
                       for (const auto& page : outcome)
                         HICACHE_CHECK(page);
                       read_more();
                     },
                     {});
  };
  const auto begin = bench_clock::now();
  for (size_t i = 0; i < storage_traffic{}.batches_in_flight; ++i)
    read_more();
  for (size_t i = 0; i < storage_traffic{}.batches_in_flight; ++i)
    finished.acquire();
  return microseconds_since(begin);
}

controller_actor::behavior_type idle_controller() {
  return {[](atom::copy, const copy_batch&) {}, [](atom::counters) { return rank_counters{}; }};
}

/// A single rank whose L2 is entirely staging pool, large enough for the whole prompt.
class world {
public:
  explicit world(store& l3)
    : store_(l3), system_(settings_), self_(system_), controller_(system_.spawn(idle_controller)),
      rank_reduction_(system_.spawn(rank_reduction, std::move(make_local_reducers(1).front()))) {
    const auto page_bytes = l3.geometry.page_bytes();
    const auto objects = std::make_shared<const page_objects>(
      fingerprint, std::vector{head_group{l3.geometry.all_heads(), shard}}, l3.geometry,
      l3.memory.data(), page_writers{}, nullptr);
    storage_ = system_.spawn(storage, storage_options{objects, &l3.clock}, std::move(l3.queue));
    prefetcher_ = system_.spawn(prefetcher, prefetcher_options{caf::timespan{deadline}, page_bytes},
                                storage_, rank_reduction_);
    backup_ = system_.spawn(backup, storage_, backup_options{caf::timespan{deadline}, page_bytes});
    auto options = tree_options{};
    options.page_size = shape.page_size;
    options.l1_pages = 8;
    options.l2_pages = options.prefetch_reserve_pages = pages;
    options.storage_attached = true;
    tree_ = system_.spawn(tree, options,
                          tree_helpers{controller_, rank_reduction_, prefetcher_, backup_, {}},
                          &l3.clock, caf::timespan{limits::step_timeout});
  }

  ~world() {
    for (const auto& actor :
         {caf::actor_cast<caf::actor>(tree_), caf::actor_cast<caf::actor>(prefetcher_),
          caf::actor_cast<caf::actor>(backup_), caf::actor_cast<caf::actor>(controller_),
          caf::actor_cast<caf::actor>(storage_), caf::actor_cast<caf::actor>(rank_reduction_)}) {
      self_->send_exit(actor, caf::exit_reason::user_shutdown);
      self_->wait_for(actor);
    }
  }

  /// From the prefetch to the step that reports all pages; clears the cache afterwards.
  /// @returns microseconds
  double prefetch() {
    const auto request = request_id{1};
    const auto begin = bench_clock::now();
    apply(
      {match_request{.request = request, .tokens = store_.tokens, .limit = store_.tokens->size()},
       prefetch_request{request}, schedule_request{request}});
    auto ready = std::vector<ready_request>{};
    while (ready.empty())
      ready = step().ready;
    const auto time = microseconds_since(begin);
    HICACHE_CHECK(ready.front().fetched_tokens == store_.tokens->size());
    apply({release_request{request}});
    while (step().in_flight)
      continue;
    apply({clear_request{}});
    step(); // Refills the staging pool.
    return time;
  }

  /// Times a few steps that wait for nothing.
  void add_steps(std::vector<double>& times) {
    for (auto i = 0; i < steps_per_round; ++i) {
      const auto begin = bench_clock::now();
      step(caf::timespan{0});
      times.push_back(microseconds_since(begin));
    }
  }

  /// Times a few steps right after the prefetch of a prompt that L3 lacks was asked for.
  void add_steps_while_naming(token_buffer tokens, std::vector<double>& times) {
    const auto request = request_id{2};
    apply({match_request{.request = request, .tokens = tokens, .limit = tokens->size()},
           prefetch_request{request}});
    add_steps(times);
    apply({schedule_request{request}});
    while (step().ready.empty())
      continue;
    apply({release_request{request}});
  }

private:
  void apply(std::vector<tree_operation> operations) {
    self_->request(tree_, caf::infinite, atom::apply_v, tree_operations{std::move(operations)})
      .receive(
        [](const tree_answers& answers) {
          for (const auto& answer : answers.list)
            HICACHE_CHECK(answer);
        },
        [](const caf::error&) { HICACHE_CHECK(false); });
  }

  step_result step(caf::timespan wait = std::chrono::seconds{1}) {
    auto facts = step_result{};
    self_->request(tree_, caf::infinite, atom::step_v, wait)
      .receive([&](step_result& x) { facts = std::move(x); },
               [](const caf::error&) { HICACHE_CHECK(false); });
    return facts;
  }

  store& store_;
  system_config settings_;
  caf::actor_system system_;
  caf::scoped_actor self_;
  controller_actor controller_;
  rank_reduction_core_actor rank_reduction_;
  storage_actor storage_;
  prefetcher_actor prefetcher_;
  backup_actor backup_;
  tree_core_actor tree_;
};

/// @pre times is not empty
double percentile_99(std::vector<double> times) {
  const auto at = times.begin() + static_cast<ptrdiff_t>(times.size() * 99 / 100);
  std::ranges::nth_element(times, at);
  return *at;
}

row compare_steps(world& rank) {
  auto idle = std::vector<double>{};
  auto naming = std::vector<double>{};
  for (auto round = 0; round < naming_rounds; ++round) {
    rank.add_steps(idle);
    // Prompts differ in their first token, so that each is named anew.
    auto tokens = std::vector<token_id>(long_prompt, 7);
    tokens.front() = static_cast<token_id>(1'000'000 + round);
    rank.add_steps_while_naming(std::make_shared<const std::vector<token_id>>(std::move(tokens)),
                                naming);
  }
  const auto usual = percentile_99(std::move(idle));
  const auto busy = percentile_99(std::move(naming));
  return {"step while a prompt of a million tokens is named and looked up, over an idle one: p99",
          busy,
          "us",
          usual,
          busy / usual,
          bound{bound::side::ratio_at_most, 1.5}};
}

} // namespace

std::vector<row> measure_prefetch() {
  // Two equal stores: one is read directly, the other's queue belongs to a rank.
  auto bare = store{};
  auto l3 = store{};
  auto rank = world{l3};
  auto alone = std::vector<double>{};
  auto fetched = std::vector<double>{};
  auto ratios = std::vector<double>{};
  const auto gib = static_cast<double>(pages) * static_cast<double>(bare.geometry.page_bytes())
                   / static_cast<double>(1 << 30);
  for (auto i = 0; i < rounds; ++i) {
    alone.push_back(1e6 * gib / read_all(bare));
    fetched.push_back(1e6 * gib / rank.prefetch());
    ratios.push_back(fetched.back() / alone.back());
  }
  return {{"prefetch of 4096 pages, 1 ms a call, over the store itself", median(fetched), "GiB/s",
           median(alone), median(ratios), bound{bound::side::ratio_at_least, 0.95}},
          compare_steps(rank)};
}

} // namespace hicache::bench
