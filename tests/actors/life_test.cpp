// A request's whole life, on real bytes: computed, cached in L1, L2 and L3, and served from each.

#include "tests/actors/rank_fixture.hpp"

#include <numeric>

namespace hicache {
namespace {

using namespace hicache::test;

/// Where the tokens of a request came from.
struct served {
  uint64_t device = 0;
  uint64_t host = 0;
  uint64_t storage = 0;

  friend bool operator==(const served&, const served&) = default;
};

tree_options small_pools() {
  return {.page_size = 4,
          .l1_pages = 16,
          .l2_pages = 32,
          .prefetch_reserve_pages = 8,
          .layers = 2,
          .prefetch = {.threshold_tokens = 8},
          .load_back_threshold_tokens = 4,
          .storage_attached = true};
}

class LifeTest : public ::testing::TestWithParam<uint32_t> {
protected:
  /// Serves a request as an engine does, checking every byte that comes from the cache.
  served serve(const tokens_t& tokens) {
    const auto id = ++last_request_;
    const auto buffer = buffer_of(tokens);
    const auto matched
      = world.apply<match_result>(match_request{id, {}, buffer, tokens.size() - 1});
    EXPECT_TRUE(matched);
    EXPECT_TRUE(world.apply<prefetch_result>(prefetch_request{id}));
    auto is_ready = world.apply<schedule_result>(schedule_request{id})->ready;
    for (auto i = 0; i < 20 && !is_ready; ++i)
      for (const auto& each : world.step().ready)
        is_ready = is_ready || each.request == id;
    EXPECT_TRUE(is_ready);
    const auto loaded = with_room<load_result>(load_request{id});
    EXPECT_TRUE(loaded);
    const auto cached = loaded->l1_tokens / 4;
    expect_bytes(tokens, *loaded->l1_pages, cached);
    const auto room = with_room<allocate_result>(allocate_request{id, tokens.size()});
    EXPECT_TRUE(room) << to_string(room.error());
    for (const auto& rank : world.ranks)
      for (auto position = cached; position < tokens.size() / 4; ++position)
        world.compute(*rank, tokens, (*room->l1_pages)[position], position);
    EXPECT_TRUE(world.apply<insert_result>(insert_request{id, buffer}));
    EXPECT_TRUE(world.apply<release_result>(release_request{id}));
    world.settle();
    return {loaded->l1_tokens - loaded->loading_tokens,
            loaded->loading_tokens - loaded->from_storage_tokens, loaded->from_storage_tokens};
  }

  /// Asks again, as an engine does, while pages of L1 are being written to make room.
  template <class Answer, class Request>
  result<Answer> with_room(const Request& request) {
    auto answer = world.apply<Answer>(request);
    for (auto i = 0; i < 20 && !answer && answer.error().code == ec::out_of_device_pages; ++i) {
      world.step();
      answer = world.apply<Answer>(request);
    }
    return answer;
  }

  void expect_bytes(const tokens_t& tokens, const std::vector<page_index>& pages, uint64_t count) {
    for (const auto& rank : world.ranks)
      for (auto position = uint64_t{0}; position < count; ++position)
        EXPECT_TRUE(world.holds(*rank, tokens, pages[position], position))
          << "rank " << rank->number << ", page " << position;
  }

  request_id last_request_ = 0;
  rank_world world{GetParam(), small_pools()};
};

TEST_P(LifeTest, RequestIsServedFromEveryTierInTurn) {
  const auto prompt = make_tokens(1, 32);
  EXPECT_EQ(serve(prompt), (served{0, 0, 0}));
  EXPECT_EQ(world.store.objects(), 8 * GetParam());
  EXPECT_EQ(serve(prompt), (served{28, 0, 0})); // The last token is always computed.
  serve(make_tokens(2, 64));                    // Fills L1; L2 holds both.
  EXPECT_EQ(serve(prompt), (served{0, 28, 0}));
  for (auto seed = 3u; seed < 6; ++seed) // Both pools are full of others.
    serve(make_tokens(seed, 64));
  EXPECT_EQ(serve(prompt), (served{0, 0, 28}));
  world.expect_nothing_lost();
  EXPECT_TRUE(world.log->notices.empty());
}

TEST_P(LifeTest, CountersTellWhatMoved) {
  serve(make_tokens(1, 32));
  const auto ranks = GetParam();
  const auto first = world.counters();
  EXPECT_EQ(first.bytes_l1_to_l2, 8 * ranks * world.page_bytes());
  EXPECT_EQ(first.bytes_l2_to_l3, 8 * ranks * world.page_bytes());
  EXPECT_EQ(first.bytes_l2_to_l1, 0u);
  for (auto seed = 2u; seed < 5; ++seed)
    serve(make_tokens(seed, 64));
  serve(make_tokens(1, 32));
  const auto later = world.counters();
  EXPECT_EQ(later.bytes_l3_to_l2, 7 * ranks * world.page_bytes());
  EXPECT_EQ(later.bytes_l2_to_l1, 7 * ranks * world.page_bytes());
  EXPECT_GT(later.evicted_l1, 0u);
  EXPECT_GT(later.evicted_l2, 0u);
  EXPECT_EQ(later.storage_failures, 0u);
  EXPECT_EQ(later.divergences, 0u);
}

TEST_P(LifeTest, BranchesOfAPrefixShareItsPages) {
  auto first = make_tokens(1, 16);
  auto second = first;
  const auto tail = make_tokens(9, 16);
  first.insert(first.end(), tail.begin(), tail.end());
  second.insert(second.end(), tail.rbegin(), tail.rend());
  serve(first);
  EXPECT_EQ(serve(second), (served{16, 0, 0}));
  EXPECT_EQ(serve(first), (served{28, 0, 0}));
  world.expect_nothing_lost();
}

TEST_P(LifeTest, PageThatOneRankCannotReadIsRecomputedByAll) {
  const auto prompt = make_tokens(1, 32);
  serve(prompt);
  for (auto seed = 2u; seed < 5; ++seed)
    serve(make_tokens(seed, 64));
  auto reads = 0;
  world.store.fault_on_get
    = [&reads](const page_key&) { return ++reads == 4 ? ec::corrupt_page : ec::none; };
  // Rank 0 reads first, and its fourth page fails; the others read all of theirs for nothing.
  EXPECT_EQ(serve(prompt), (served{0, 0, 12}));
  EXPECT_EQ(world.counters().storage_failures, 1u);
  world.store.fault_on_get = nullptr;
  EXPECT_EQ(serve(prompt), (served{28, 0, 0}));
  world.expect_nothing_lost();
}

TEST_P(LifeTest, StoreThatTakesNothingCostsOnlyRecomputation) {
  world.store.fault_on_set = [](const page_key&) { return ec::io_failure; };
  const auto prompt = make_tokens(1, 32);
  serve(prompt);
  for (auto seed = 2u; seed < 5; ++seed)
    serve(make_tokens(seed, 64));
  EXPECT_EQ(world.store.objects(), 0u);
  EXPECT_EQ(serve(prompt), (served{0, 0, 0}));
  EXPECT_GT(world.counters().storage_failures, 0u);
  world.expect_nothing_lost();
}

INSTANTIATE_TEST_SUITE_P(Ranks, LifeTest, ::testing::Values(1u, 2u, 4u),
                         [](const auto& of) { return std::to_string(of.param) + "Ranks"; });

} // namespace
} // namespace hicache
