// The prefix cache on one core: the bare radix_tree, and the cache built on it for engines.
//
// What: match, insert (with and without events), lock, eviction, whole requests, page names,
// memory. Vary: page size, eviction policy, number of leaves. Read: through run.sh, which compares
// each figure with its baseline of the same run.

#include "base/check.hpp"
#include "bench/chat.hpp"
#include "bench/cold_tree.hpp"
#include "cache/hash/page_hash.hpp"
#include "cache/prefix/prefix_cache.hpp"
#include "cache/radix/radix_tree.hpp"

#include <benchmark/benchmark.h>

#include <malloc.h>

#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace hicache::bench {

namespace {

constexpr uint32_t victims_per_round = 250;

/// Page names of all conversations; empty lists for trees without names.
using chat_names = std::vector<std::shared_ptr<const page_names>>;

const chat& workload() {
  return chat::instance();
}

void count_tokens(benchmark::State& state, uint64_t per_iteration) {
  state.counters["tokens"] = benchmark::Counter(static_cast<double>(per_iteration),
                                                benchmark::Counter::kIsIterationInvariantRate);
}

/// Room for twice the workload, so that a further turn of all sessions fits.
uint32_t pages_needed(uint32_t page_size) {
  return static_cast<uint32_t>(2 * workload().new_tokens() / page_size);
}

std::unique_ptr<radix_tree> make_tree(uint32_t page_size, bool events = false) {
  auto options = radix_options{};
  options.page_size = page_size;
  options.l1_pages = pages_needed(page_size);
  options.events = events;
  return std::make_unique<radix_tree>(options);
}

chat_names name_all(uint32_t page_size) {
  auto names = chat_names{};
  for (auto i = uint32_t{0}; i < chat::sessions; ++i)
    names.push_back(std::make_shared<const page_names>(
      hash_pages(workload().conversation(i), page_size, nullptr)));
  return names;
}

/// Inserts a turn as a request does: its own pages start where the cached prefix ended at its
/// arrival; pages inserted by others in the meantime are duplicates.
void insert(radix_tree& tree, radix_node& root, const chat_turn& turn, const chat_names& names) {
  const uint64_t size = tree.options().page_size;
  const auto pages = turn.told->size() / size;
  const auto known = turn.known / size;
  tree.tick();
  auto own = *tree.take_l1(pages - known);
  auto* end = &tree.cut(tree.walk(root, *turn.told, pages));
  const auto from = end->end();
  tree.l1_pool().give_back(std::span{own}.first(from - known));
  own.erase(own.begin(), own.begin() + static_cast<ptrdiff_t>(from - known));
  if (from < pages) {
    const auto known_names
      = names.empty() ? name_run{} : name_run{names[turn.session], from, pages - from};
    end = &tree.add(*end, token_span{turn.told, from * size, (pages - from) * size}, std::move(own),
                    {}, known_names, l3_state::unknown);
  }
  tree.touch(*end, 1);
}

/// Inserts the first `turns` turns of all sessions.
void fill(radix_tree& tree, uint32_t turns, const chat_names& names = {}) {
  auto& root = tree.root({});
  for (const auto& turn : std::span{workload().all()}.first(turns * chat::sessions)) {
    insert(tree, root, turn, names);
    if (tree.options().events && turn.session + 1 == chat::sessions)
      benchmark::DoNotOptimize(tree.take_changes());
  }
}

// -- the bare tree ------------------------------------------------------------

/// Baseline of match and insert: compares the tokens with one contiguous buffer per conversation.
void compare(benchmark::State& state) {
  for (auto _ : state)
    for (const auto& turn : workload().all()) {
      const auto& whole = workload().conversation(turn.session);
      const auto bytes = turn.told->size() * sizeof(token_id);
      auto difference = std::memcmp(turn.told->data(), whole.data(), bytes);
      benchmark::DoNotOptimize(difference);
    }
  count_tokens(state, workload().told_tokens());
}

void match(benchmark::State& state) {
  const auto page_size = static_cast<uint32_t>(state.range(0));
  const auto tree = make_tree(page_size);
  fill(*tree, chat::turns);
  auto& root = tree->root({});
  for (auto _ : state)
    for (const auto& turn : workload().all()) {
      const auto pages = turn.told->size() / page_size;
      tree->tick();
      const auto end = tree->walk(root, *turn.told, pages);
      HICACHE_CHECK(end.pages == pages);
      tree->touch(tree->cut(end), 0);
    }
  count_tokens(state, workload().told_tokens());
}

void insert_all(benchmark::State& state, bool events) {
  const auto page_size = static_cast<uint32_t>(state.range(0));
  const auto names = events ? name_all(page_size) : chat_names{};
  auto tree = std::unique_ptr<radix_tree>{};
  for (auto _ : state) {
    state.PauseTiming();
    tree = make_tree(page_size, events);
    state.ResumeTiming();
    fill(*tree, chat::turns, names);
  }
  count_tokens(state, workload().told_tokens());
}

void lock_path(benchmark::State& state) {
  // After nine turns a session's path has ten nodes: the prompt and one per turn.
  const auto tree = make_tree(64);
  fill(*tree, 9);
  auto ends = std::vector<radix_node*>{};
  for (auto i = uint32_t{0}; i < chat::sessions; ++i) {
    const auto& last = *workload().all()[8 * chat::sessions + i].told;
    ends.push_back(&tree->cut(tree->walk(tree->root({}), last, last.size() / 64)));
    HICACHE_CHECK(path_nodes(*ends.back(), [](const auto&) { return true; }).size() == 10);
  }
  auto next = size_t{0};
  for (auto _ : state) {
    auto& end = *ends[next++ % ends.size()];
    tree->lock_l1(end);
    tree->unlock_l1(end);
  }
}

/// Building trees of a million leaves takes seconds, so each is built once.
cold_tree& shared_cold_tree(uint32_t leaves, const std::string& policy) {
  static auto trees = std::map<std::pair<uint32_t, std::string>, std::unique_ptr<cold_tree>>{};
  auto& tree = trees[{leaves, policy}];
  if (!tree)
    tree = std::make_unique<cold_tree>(leaves, policy);
  return *tree;
}

void evict(benchmark::State& state, uint32_t leaves, const std::string& policy) {
  auto& cold = shared_cold_tree(leaves, policy);
  for (auto _ : state) {
    const auto freed = cold.tree().evict_l1(victims_per_round);
    state.PauseTiming();
    HICACHE_CHECK(freed == victims_per_round);
    cold.add_leaves();
    state.ResumeTiming();
  }
  state.counters["victims"] = benchmark::Counter(
    victims_per_round, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// -- the cache ----------------------------------------------------------------

std::unique_ptr<prefix_cache> make_cache(uint32_t page_size, bool events, bool copies = false) {
  auto options = tree_options{};
  options.page_size = page_size;
  options.l1_pages = pages_needed(page_size);
  options.l2_pages = copies ? options.l1_pages : 0;
  options.events = events;
  return std::make_unique<prefix_cache>(options);
}

/// Finishes all copies to L2.
void finish_copies(prefix_cache& cache) {
  auto facts = step_facts{};
  for (const auto& effect : cache.take_effects())
    facts.writes_done += std::holds_alternative<write_command>(effect) ? 1 : 0;
  cache.step(facts, {});
}

void serve(prefix_cache& cache, const chat_turn& turn) {
  const auto matched
    = cache.match({.request = 1, .tokens = turn.asked, .limit = turn.asked->size() - 1});
  const auto room = cache.allocate({1, turn.told->size()});
  const auto inserted = cache.insert({.request = 1, .tokens = turn.told});
  HICACHE_CHECK(matched && room && inserted && cache.release(1));
}

void serve_all(prefix_cache& cache) {
  for (const auto& turn : workload().all())
    serve(cache, turn);
  benchmark::DoNotOptimize(name_events(cache.take_changes()));
}

/// @param copies Whether L2 has a copy of each page.
void match_and_release(benchmark::State& state, bool copies) {
  const auto cache = make_cache(static_cast<uint32_t>(state.range(0)), false, copies);
  serve_all(*cache);
  finish_copies(*cache);
  for (auto _ : state)
    for (const auto& turn : workload().all()) {
      const auto matched
        = cache->match({.request = 1, .tokens = turn.told, .limit = turn.told->size()});
      HICACHE_CHECK(matched && matched->l1_tokens == turn.told->size());
      HICACHE_CHECK(cache->release(1));
    }
  count_tokens(state, workload().told_tokens());
}

void whole_requests(benchmark::State& state, bool events) {
  auto cache = std::unique_ptr<prefix_cache>{};
  for (auto _ : state) {
    state.PauseTiming();
    cache = make_cache(static_cast<uint32_t>(state.range(0)), events);
    state.ResumeTiming();
    serve_all(*cache);
  }
  count_tokens(state, workload().told_tokens());
}

/// Walks a prompt of a thousand pages, half of which left L1.
/// @param at_once Whether they left together, or page by page.
void match_demoted(benchmark::State& state, bool at_once) {
  constexpr auto pages = uint32_t{1024};
  constexpr auto page_size = uint32_t{16};
  auto options = radix_options{};
  options.page_size = page_size;
  options.l1_pages = options.l2_pages = pages;
  auto tree = radix_tree{options};
  const auto tokens = std::make_shared<const std::vector<token_id>>(pages * page_size, 7);
  auto& root = tree.root({});
  tree.tick();
  tree.add(root, token_span{tokens, 0, tokens->size()}, *tree.take_l1(pages), *tree.take_l2(pages),
           {}, l3_state::unknown);
  const auto parts = at_once ? 1U : pages / 2;
  for (auto i = uint32_t{0}; i < parts; ++i) {
    tree.evict_l1(pages / 2 / parts);
    tree.join_nodes();
  }
  for (auto _ : state)
    benchmark::DoNotOptimize(tree.walk(root, *tokens, pages));
  count_tokens(state, tokens->size());
}

void name_pages(benchmark::State& state) {
  const auto& tokens = workload().conversation(0);
  for (auto _ : state)
    benchmark::DoNotOptimize(hash_pages(tokens, static_cast<uint32_t>(state.range(0)), nullptr));
  count_tokens(state, tokens.size());
}

// -- memory -------------------------------------------------------------------

/// Bytes allocated by malloc, including its headers and rounding.
double bytes_in_use() {
  const auto info = mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}

/// One-page leaves with everything that a tree stores for them, tokens included.
void memory_of_leaves(benchmark::State& state) {
  for (auto _ : state) {
    const auto before = bytes_in_use();
    const auto cold = cold_tree{100'000, "lru"};
    state.counters["bytes"] = (bytes_in_use() - before) / static_cast<double>(cold.nodes());
  }
}

/// Nodes with so many pages that the per-page cost dominates; tokens excluded.
void memory_of_pages(benchmark::State& state, bool everywhere) {
  constexpr auto nodes = uint32_t{16};
  constexpr auto pages = uint32_t{4096};
  constexpr auto page_size = uint32_t{64};
  auto buffers = std::vector<token_buffer>{};
  for (auto i = uint32_t{0}; i < nodes; ++i)
    buffers.push_back(std::make_shared<const std::vector<token_id>>(pages * page_size, i));
  for (auto _ : state) {
    auto options = radix_options{};
    options.page_size = page_size;
    options.l1_pages = nodes * pages;
    options.l2_pages = nodes * pages;
    auto tree = radix_tree{options};
    auto& root = tree.root({});
    const auto before = bytes_in_use();
    for (const auto& tokens : buffers) {
      tree.tick();
      auto host = everywhere ? *tree.take_l2(pages) : std::vector<page_index>{};
      auto& node = tree.add(root, token_span{tokens, 0, tokens->size()}, *tree.take_l1(pages),
                            std::move(host), {}, l3_state::unknown);
      if (everywhere)
        benchmark::DoNotOptimize(tree.names_of(node).get());
    }
    state.counters["bytes"] = (bytes_in_use() - before) / (nodes * pages);
  }
}

// -- list ---------------------------------------------------------------------

BENCHMARK(compare)->Unit(benchmark::kMillisecond);
BENCHMARK(match)->Arg(1)->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(insert_all, plain, false)
  ->Arg(1)
  ->Arg(16)
  ->Arg(64)
  ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(insert_all, events, true)
  ->Arg(1)
  ->Arg(16)
  ->Arg(64)
  ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(match_and_release, plain, false)->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(match_and_release, copies, true)->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_requests, plain, false)->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(whole_requests, events, true)->Arg(16)->Arg(64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(match_demoted, at_once, true);
BENCHMARK_CAPTURE(match_demoted, by_page, false);
BENCHMARK(name_pages)->Arg(1)->Arg(16)->Arg(64);
BENCHMARK(lock_path);
BENCHMARK_CAPTURE(evict, million, 1'000'000, "lru")->Iterations(40);
BENCHMARK_CAPTURE(evict, lru, 1000, "lru")->Iterations(40);
BENCHMARK_CAPTURE(evict, lfu, 1000, "lfu")->Iterations(40);
BENCHMARK_CAPTURE(evict, fifo, 1000, "fifo")->Iterations(40);
BENCHMARK_CAPTURE(evict, mru, 1000, "mru")->Iterations(40);
BENCHMARK_CAPTURE(evict, filo, 1000, "filo")->Iterations(40);
BENCHMARK_CAPTURE(evict, priority, 1000, "priority")->Iterations(40);
BENCHMARK_CAPTURE(evict, slru, 1000, "slru")->Iterations(40);
BENCHMARK(memory_of_leaves)->Iterations(1)->Repetitions(1);
BENCHMARK_CAPTURE(memory_of_pages, device, false)->Iterations(1)->Repetitions(1);
BENCHMARK_CAPTURE(memory_of_pages, everywhere, true)->Iterations(1)->Repetitions(1);

} // namespace

} // namespace hicache::bench

BENCHMARK_MAIN();
