// Cases S1 to P30 of SGLang's L3 (docs/internals.md, "Cases of SGLang"), on one complete rank:
// tree, prefetcher, backup and storage, with a store in memory. Page 4, lengths in tokens.

#include "cache/hash/page_hash.hpp"
#include "tests/actors/rank_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

constexpr auto page_size = uint64_t{4};

const auto A = make_tokens(1, 16);
const auto B = make_tokens(2, 16);

/// L1 and L2 of 64 tokens. The reserve stands for the half of L2 to which SGLang limits prefetches.
tree_options l3(prefetch_policy policy = prefetch_policy::best_effort) {
  return {.page_size = page_size,
          .l1_pages = 16,
          .l2_pages = 16,
          .prefetch_reserve_pages = 8,
          .prefetch = {.policy = policy,
                       .threshold_tokens = 4,
                       .timeout_base = 1s,
                       .timeout_per_ki_token = 250ms,
                       .timeout_max = 30s},
          .storage_attached = true,
          .storage_backend = "shared"};
}

using counts = std::vector<uint64_t>;

/// (tokens on the device, tokens that follow on the host)
using hit = std::pair<uint64_t, uint64_t>;

class SglangL3Test : public ::testing::Test {
protected:
  void start(const tree_options& options = l3()) {
    options_ = options;
    world_.emplace(1, options);
  }

  const rank_world::rank& rank() const { return *world_->ranks.front(); }

  const prefix_cache& core() const { return rank_world::core_of(rank()); }

  // -- the store --------------------------------------------------------------

  static page_key object_of(const page_key& page) {
    return object_key(page, object_mask("model=test", "heads 0+1"));
  }

  void put_in_store(const tokens_t& tokens, uint32_t overlap = 0) {
    const auto store = world_->store.open();
    const auto bytes = std::vector<std::byte>(world_->page_bytes());
    for (const auto& key : hash_pages(tokens, page_size, nullptr, overlap))
      EXPECT_TRUE(
        store->set(std::vector{page_write{object_of(key), {}, {bytes}}}, time_point::max())[0]);
  }

  void close_gate() { world_->close_gate(0); }

  void open_gate() {
    rank().gate->fault = nullptr;
    world_->open_gate(0);
  }

  /// Lets the oldest request of a verb pass a closed gate.
  void pass(const std::string& verb) {
    auto& gate = *rank().gate;
    const auto first = std::ranges::find(gate.held, verb, &held_request::verb);
    ASSERT_NE(first, gate.held.end()) << verb;
    std::rotate(gate.held.begin(), first, first + 1);
    gate.fault = [&gate] {
      gate.is_open = false;
      return ec::none;
    };
    world_->open_gate(0);
  }

  /// Pages of each request to the storage so far.
  counts asked(const std::string& verb) const {
    const auto& all = rank().gate->asked;
    return all.contains(verb) ? all.at(verb) : counts{};
  }

  // -- requests ---------------------------------------------------------------

  request_id open(const tokens_t& tokens) {
    const auto id = ++last_request_;
    EXPECT_TRUE(
      world_->apply<match_result>(match_request{id, {}, buffer_of(tokens), tokens.size()}));
    return id;
  }

  uint64_t prefetch(request_id id) {
    return world_->apply<prefetch_result>(prefetch_request{id})->tokens;
  }

  bool schedule(request_id id) {
    return world_->apply<schedule_result>(schedule_request{id})->ready;
  }

  request_provenance release(request_id id) {
    return world_->apply<release_result>(release_request{id})->provenance;
  }

  hit match(const tokens_t& tokens) {
    const auto id = ++last_request_;
    const auto result
      = world_->apply<match_result>(match_request{id, {}, buffer_of(tokens), tokens.size()});
    release(id);
    return {result->l1_tokens, result->l2_tokens};
  }

  /// Computes what the cache lacks of an open request, and closes it.
  request_provenance finish(request_id id, const tokens_t& tokens) {
    const auto pages = world_->apply<allocate_result>(allocate_request{id, tokens.size()});
    EXPECT_TRUE(pages) << to_string(pages.error());
    for (auto i = size_t{0}; i < tokens.size() / page_size; ++i)
      world_->compute(rank(), tokens, (*pages->l1_pages)[i], i);
    EXPECT_TRUE(world_->apply<insert_result>(insert_request{id, buffer_of(tokens)}));
    return release(id);
  }

  void insert(const tokens_t& tokens) { finish(open(tokens), tokens); }

  std::vector<ready_request> step() { return world_->step().ready; }

  /// Expects that a step reports one request, with so many tokens from L3.
  void expect_ready(request_id id, uint64_t fetched) {
    const auto ready = step();
    ASSERT_EQ(ready.size(), 1u);
    EXPECT_EQ(ready[0].request, id);
    EXPECT_EQ(ready[0].fetched_tokens, fetched);
    EXPECT_TRUE(schedule(id));
  }

  // -- what is where ----------------------------------------------------------

  size_t fetching() const { return core().fetching().size(); }

  size_t backing_up() const { return core().backing_up().size(); }

  /// Tokens of the reserve that prefetches hold.
  uint64_t occupied() const {
    return (options_.prefetch_reserve_pages - reserve().size()) * page_size;
  }

  /// What SGLang calls free in L2: nobody's, or set aside and not in use.
  uint64_t l2_free() const { return (core().stats().l2_free + reserve().size()) * page_size; }

  std::optional<rank_world> world_;

private:
  const std::vector<page_index>& reserve() const {
    return rank_world::state_of<prefetcher_state>(rank().prefetcher).reserve;
  }

  tree_options options_;
  request_id last_request_ = 0;
};

// -- backup -------------------------------------------------------------------

TEST_F(SglangL3Test, S1WhatIsInL2IsStoredOnce) {
  start();
  close_gate();
  insert(A);
  EXPECT_EQ(backing_up(), 0u);
  step();
  EXPECT_EQ(backing_up(), 1u);
  ASSERT_EQ(rank().gate->held.size(), 1u);
  EXPECT_EQ(rank().gate->held[0].verb, "set");
  const auto& names = *rank().gate->held[0].batch.names;
  EXPECT_EQ(names.get(0, names.size()), hash_pages(A, page_size, nullptr));
  open_gate();
  EXPECT_EQ(world_->store.objects(), 4u);
  EXPECT_EQ(backing_up(), 1u);
  step();
  EXPECT_EQ(backing_up(), 0u);
  insert(A);
  world_->settle();
  EXPECT_EQ(asked("set"), counts{4});
}

TEST_F(SglangL3Test, S2LongBackupsGoInBatches) {
  auto options = l3();
  options.l1_pages = 300;
  options.l2_pages = 308;
  start(options);
  insert(make_tokens(1, 1200));
  world_->settle();
  EXPECT_EQ(asked("set"), (counts{128, 128, 44}));
  EXPECT_EQ(world_->store.objects(), 300u);
}

// S6 is in sglang_storage_test.cpp.

// -- prefetch -----------------------------------------------------------------

// SGLang charges what is asked for; here the pages that L3 turned out to have are charged.
TEST_F(SglangL3Test, P1BringsWhatIsStored) {
  start();
  put_in_store(A);
  EXPECT_EQ(l2_free(), 64u);
  const auto request = open(A);
  close_gate();
  EXPECT_EQ(prefetch(request), 16u);
  EXPECT_EQ(fetching(), 1u);
  EXPECT_EQ(occupied(), 0u);
  pass("exists");
  EXPECT_EQ(occupied(), 16u);
  EXPECT_EQ(l2_free(), 48u);
  EXPECT_TRUE(step().empty());
  EXPECT_EQ(fetching(), 1u);
  pass("get");
  expect_ready(request, 16);
  release(request);
  EXPECT_EQ(match(A), (hit{0, 16}));
  EXPECT_EQ(fetching(), 0u);
  EXPECT_EQ(occupied(), 0u);
  EXPECT_EQ(l2_free(), 48u);
  EXPECT_EQ(asked("exists"), counts{4});
  EXPECT_EQ(asked("get"), counts{4});
}

TEST_F(SglangL3Test, P2TakesRoomForWhatIsFoundOnly) {
  start();
  put_in_store(make_tokens(1, 8));
  const auto request = open(A);
  close_gate();
  prefetch(request);
  pass("exists");
  EXPECT_EQ(occupied(), 8u);
  EXPECT_EQ(l2_free(), 56u);
  pass("get");
  expect_ready(request, 8);
  release(request);
  EXPECT_EQ(match(A), (hit{0, 8}));
}

TEST_F(SglangL3Test, P3StopsAtTheFirstMissingPage) {
  start();
  put_in_store(A);
  const auto missing = object_of(hash_pages(A, page_size, nullptr)[1]);
  EXPECT_TRUE(world_->store.open()->remove(std::vector{missing}, time_point::max())[0]);
  const auto request = open(A);
  prefetch(request);
  expect_ready(request, 4);
  release(request);
  EXPECT_EQ(asked("get"), counts{1});
  EXPECT_EQ(match(A), (hit{0, 4}));
}

TEST_F(SglangL3Test, P4TailsBelowTheThresholdAreNotAskedFor) {
  auto options = l3();
  options.prefetch.threshold_tokens = 32;
  start(options);
  put_in_store(A);
  const auto request = open(A);
  EXPECT_EQ(prefetch(request), 0u);
  EXPECT_EQ(fetching(), 0u);
  EXPECT_TRUE(schedule(request));
  EXPECT_TRUE(rank().gate->asked.empty());
}

TEST_F(SglangL3Test, P4HitsBelowTheThresholdAreNotRead) {
  auto options = l3();
  options.prefetch.threshold_tokens = 12;
  start(options);
  put_in_store(make_tokens(1, 8));
  const auto request = open(A);
  EXPECT_EQ(prefetch(request), 16u);
  EXPECT_EQ(fetching(), 1u);
  expect_ready(request, 0);
  release(request);
  EXPECT_EQ(fetching(), 0u);
  EXPECT_EQ(occupied(), 0u);
  EXPECT_EQ(l2_free(), 64u);
  EXPECT_EQ(match(A), (hit{0, 0}));
  EXPECT_EQ(asked("exists"), counts{4});
  EXPECT_TRUE(asked("get").empty());
}

// SGLang counts outcomes of prefetches; here each request says where its tokens came from.
TEST_F(SglangL3Test, P5AMissCostsNothingAndIsNoFailure) {
  start();
  const auto request = open(A);
  EXPECT_EQ(prefetch(request), 16u);
  expect_ready(request, 0);
  EXPECT_EQ(fetching(), 0u);
  EXPECT_EQ(occupied(), 0u);
  EXPECT_EQ(finish(request, A), (request_provenance{0, 0, 0, "", 16, 0, miss_reason::none}));
  EXPECT_EQ(asked("exists"), counts{4});
  EXPECT_TRUE(asked("get").empty());
  EXPECT_EQ(world_->counters().storage_failures, 0u);
}

// SGLang declines a prefetch while half of L2 is charged, and so may exceed that half. Here every
// prefetch is asked for, and brings what the reserve has room for when its length is known.
TEST_F(SglangL3Test, P6PrefetchesTogetherFitTheReserve) {
  for (const auto occupied_before : {16u, 12u}) {
    SCOPED_TRACE(occupied_before);
    auto options = l3();
    options.l2_pages = 8;
    options.prefetch_reserve_pages = 4;
    start(options);
    const auto first = make_tokens(1, occupied_before);
    put_in_store(first);
    put_in_store(B);
    close_gate();
    prefetch(open(first));
    pass("exists");
    EXPECT_EQ(occupied(), occupied_before);
    const auto request = open(B);
    EXPECT_EQ(prefetch(request), 16u);
    pass("exists");
    EXPECT_EQ(occupied(), 16u);
    const auto room = 16u - occupied_before;
    if (room > 0) {
      pass("get"); // The first one's.
      EXPECT_EQ(step().size(), 1u);
      pass("get");
    }
    expect_ready(request, room);
    EXPECT_EQ(finish(request, B), (request_provenance{0, 0, 0, "", 16, 16, miss_reason::no_room}));
    open_gate();
    world_->settle();
  }
}

TEST_F(SglangL3Test, P8KeepsWhatCameBeforeAFailedRead) {
  start();
  put_in_store(A);
  world_->store.fault_on_get = [](const page_key& object) {
    return object == object_of(hash_pages(A, page_size, nullptr)[2]) ? ec::io_failure : ec::none;
  };
  const auto request = open(A);
  prefetch(request);
  expect_ready(request, 8);
  release(request);
  EXPECT_EQ(match(A), (hit{0, 8}));
  EXPECT_EQ(l2_free(), 56u);
  EXPECT_EQ(occupied(), 0u);
  EXPECT_EQ(world_->counters().storage_failures, 1u);
}

// SGLang asks from a queue, so an abort may come before the query. Here the query goes out with the
// prefetch; an abort keeps its answer from having any effect.
TEST_F(SglangL3Test, P9AnAbortBeforeTheAnswerReadsNothing) {
  start();
  put_in_store(A);
  const auto request = open(A);
  close_gate();
  prefetch(request);
  release(request);
  EXPECT_TRUE(step().empty());
  EXPECT_EQ(fetching(), 0u);
  open_gate();
  EXPECT_EQ(occupied(), 0u);
  EXPECT_EQ(l2_free(), 64u);
  EXPECT_EQ(asked("exists"), counts{4});
  EXPECT_TRUE(asked("get").empty());
  EXPECT_EQ(match(A), (hit{0, 0}));
  world_->expect_nothing_lost();
}

TEST_F(SglangL3Test, P12WaitCompleteWaitsForQueryAndReads) {
  start(l3(prefetch_policy::wait_complete));
  put_in_store(A);
  const auto request = open(A);
  close_gate();
  prefetch(request);
  EXPECT_FALSE(schedule(request));
  EXPECT_TRUE(step().empty());
  pass("exists");
  EXPECT_FALSE(schedule(request));
  EXPECT_TRUE(step().empty());
  pass("get");
  expect_ready(request, 16);
  release(request);
  EXPECT_EQ(match(A), (hit{0, 16}));
}

// SGLang counts from the prefetch and lets go in the poll that is late enough. Here the time begins
// with the first step after the prefetch, because all ranks must see it alike, and the step after
// the one that is late enough says what arrived. The formula is the same: 1 s + 0.25 s * 16 / 1024.
TEST_F(SglangL3Test, P15TimeoutLetsGoWhenTheTimeIsUp) {
  start(l3(prefetch_policy::timeout));
  put_in_store(A);
  const auto request = open(A);
  close_gate();
  prefetch(request);
  EXPECT_FALSE(schedule(request));
  const auto begin = world_->clock.now().time_since_epoch();
  EXPECT_TRUE(step().empty());
  EXPECT_EQ(core().next_deadline_ns(), (begin + 1'003'906'250ns).count());
  world_->advance(990ms);
  for (auto i = 0; i < 3; ++i)
    EXPECT_TRUE(step().empty());
  EXPECT_FALSE(schedule(request));
  world_->advance(50ms);
  EXPECT_TRUE(step().empty());
  expect_ready(request, 0);
  release(request);
  open_gate();
  world_->settle();
  EXPECT_TRUE(asked("get").empty());
}

TEST_F(SglangL3Test, P17BringsAsMuchAsThereIsRoomFor) {
  auto options = l3();
  options.l2_pages = 6;
  options.prefetch_reserve_pages = 2;
  start(options);
  insert(B);
  world_->settle();
  const auto busy = open(B);
  EXPECT_EQ(l2_free(), 8u);
  put_in_store(A);
  const auto request = open(A);
  EXPECT_EQ(prefetch(request), 16u);
  expect_ready(request, 8);
  release(request);
  EXPECT_EQ(asked("get"), counts{2});
  EXPECT_EQ(match(A), (hit{0, 8}));
  release(busy);
}

TEST_F(SglangL3Test, P22ALongPrefetchIsOneQueryAndReadsInBatches) {
  auto options = l3();
  options.l2_pages = 600;
  options.prefetch_reserve_pages = 300;
  start(options);
  const auto tokens = make_tokens(1, 1200);
  put_in_store(tokens);
  const auto request = open(tokens);
  EXPECT_EQ(prefetch(request), 1200u);
  expect_ready(request, 1200);
  EXPECT_EQ(asked("exists"), counts{300});
  EXPECT_EQ(asked("get"), (counts{128, 128, 44}));
  release(request);
}

TEST_F(SglangL3Test, P25WhatCameFromL3IsLoadedAndNotStoredAgain) {
  start();
  insert(A);
  world_->settle();
  EXPECT_EQ(asked("set"), counts{4});
  EXPECT_TRUE(world_->apply<clear_result>(clear_request{}));
  EXPECT_EQ(match(A), (hit{0, 0}));
  const auto request = open(A);
  prefetch(request);
  expect_ready(request, 16);
  const auto loaded = world_->apply<load_result>(load_request{request});
  EXPECT_EQ(loaded->loading_tokens, 16u);
  EXPECT_EQ(loaded->from_storage_tokens, 16u);
  world_->settle();
  for (auto i = size_t{0}; i < 4; ++i)
    EXPECT_TRUE(world_->holds(rank(), A, (*loaded->l1_pages)[i], i)) << "page " << i;
  EXPECT_EQ(finish(request, A), (request_provenance{0, 0, 16, "shared", 0, 0, miss_reason::none}));
  world_->settle();
  EXPECT_EQ(match(A), (hit{16, 0}));
  EXPECT_EQ(asked("set"), counts{4});
}

TEST_F(SglangL3Test, P30BigramsAreOneFewerThanTheTokens) {
  auto options = l3();
  options.bigram = true;
  start(options);
  const auto tokens = make_tokens(1, 17);
  put_in_store(tokens, 1);
  const auto shorter = open(A); // 15 pairs.
  EXPECT_EQ(prefetch(shorter), 12u);
  expect_ready(shorter, 12);
  release(shorter);
  EXPECT_TRUE(world_->apply<clear_result>(clear_request{}));
  const auto request = open(tokens);
  EXPECT_EQ(prefetch(request), 16u);
  expect_ready(request, 16);
  release(request);
  EXPECT_EQ(match(tokens), (hit{0, 16}));
  EXPECT_EQ(asked("exists"), (counts{3, 4}));
}

} // namespace
} // namespace hicache
