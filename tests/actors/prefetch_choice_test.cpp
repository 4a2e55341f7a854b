// Which tiers prefetched pages come from, and whether they are loaded or computed.

#include "tests/actors/prefetcher_fixture.hpp"

namespace hicache {
namespace {

using namespace hicache::test;
using std::chrono::milliseconds;

TEST_F(PrefetcherTest, TellsWhichTiersThePagesCameFrom) {
  start(1);
  fetch(1, 10);
  hit_tiers(3, 5);
  read(uint64_t{6});
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_EQ(fetched()[0].by_tier[0], 3u);
  EXPECT_EQ(fetched()[0].by_tier[1], 3u) << "what arrived";
  EXPECT_EQ(fetched()[0].tiers, tiers_);
  fetch(2, 10);
  hit(4);
  read();
  EXPECT_EQ(fetched()[1].by_tier[0], 0u) << "there are no tiers";
  EXPECT_EQ(fetched()[1].tiers, nullptr);
}

TEST_F(PrefetcherTest, TellsItsEstimatesWhateverItsRule) {
  start(1);
  page_compute_ = milliseconds{3};
  measure(1, 8, milliseconds{2});
  EXPECT_EQ(fetched()[0].load_estimate, duration{0});
  EXPECT_EQ(fetched()[0].compute_estimate, milliseconds{24});
  fetch(2, 8);
  hit(8);
  read();
  EXPECT_EQ(fetched()[1].load_estimate, milliseconds{16});
  EXPECT_EQ(fetched()[1].compute_estimate, milliseconds{24});
  EXPECT_EQ(fetched()[1].l2_pages->size(), 8u);
  EXPECT_GT(counters().load_ns, 0u);
}

class PrefetchFasterTest : public PrefetcherTest {
protected:
  PrefetchFasterTest() {
    when_ = prefetch_rule::faster;
    page_compute_ = milliseconds{10};
  }

  size_t waiting(const std::string& verb, size_t rank = 0) const {
    return static_cast<size_t>(std::ranges::count(*ranks_[rank].held, verb, &held_request::verb));
  }
};

TEST_F(PrefetchFasterTest, TakesNothingUntilItHasMeasured) {
  start(1);
  measure(1, 8, milliseconds{2});
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_TRUE(fetched()[0].l2_pages->empty());
  EXPECT_EQ(fetched()[0].why, miss_reason::faster_to_compute);
  expect_no_page_lost(400);
  // It has read them, to know how long that takes.
  fetch(2, 8);
  EXPECT_EQ(fetched().size(), 1u) << "it waits for the lookup";
  hit(8);
  ASSERT_EQ(reads(), std::vector<uint64_t>{8});
  read();
  EXPECT_EQ(fetched()[1].l2_pages->size(), 8u);
  EXPECT_EQ(fetched()[1].why, miss_reason::none);
  EXPECT_EQ(fetched()[1].load_estimate, milliseconds{16});
  EXPECT_EQ(counters().declined_pages, 0u);
  expect_no_page_lost(400);
}

TEST_F(PrefetchFasterTest, LeavesWhatIsFasterToCompute) {
  start(1);
  measure(1, 8, milliseconds{20});
  fetch(2, 8);
  hit(8);
  ASSERT_EQ(fetched().size(), 2u);
  EXPECT_TRUE(fetched()[1].l2_pages->empty());
  EXPECT_EQ(fetched()[1].found, 8u);
  EXPECT_EQ(fetched()[1].why, miss_reason::faster_to_compute);
  EXPECT_EQ(fetched()[1].load_estimate, milliseconds{160});
  EXPECT_EQ(fetched()[1].compute_estimate, milliseconds{80});
  EXPECT_EQ(counters().declined_pages, 8u);
  EXPECT_TRUE(reads().empty()) << "it was measured just now";
  expect_no_page_lost(400);
}

TEST_F(PrefetchFasterTest, NoticesThatTheStoreHasBecomeFaster) {
  start(1);
  measure(1, 8, milliseconds{20});
  for (auto id = fetch_id{2}; id < 30; ++id) {
    advance(limits::load_probe_interval);
    fetch(id, 8);
    hit(8);
    advance(milliseconds{8});
    ASSERT_EQ(waiting("get"), 1u);
    read();
    if (!fetched().back().l2_pages->empty())
      break;
  }
  EXPECT_EQ(fetched().back().l2_pages->size(), 8u);
  EXPECT_LT(fetched().size(), 20u);
}

TEST_F(PrefetchFasterTest, DoesNotWaitForALookUpThatCannotPay) {
  start(1);
  measure(1, 8, milliseconds{2});
  for (auto id = fetch_id{2}; id < 8; ++id) {
    fetch(id, 8);
    advance(milliseconds{500});
    hit(8);
    for (auto left = waiting("get"); left > 0; --left)
      read();
  }
  const auto before = fetched().size();
  fetch(8, 8);
  ASSERT_EQ(fetched().size(), before + 1) << "lookups take longer than to compute";
  EXPECT_EQ(fetched().back().why, miss_reason::faster_to_compute);
  EXPECT_EQ(fetched().back().found, 0u);
  hit(8);
  EXPECT_EQ(fetched().size(), before + 1);
}

TEST_F(PrefetchFasterTest, DoesNotWaitForALookUpBehindAProbe) {
  start(1);
  fetch(1, 8);
  hit(8);
  ASSERT_EQ(waiting("get"), 1u) << "it is probed";
  fetch(2, 8);
  ASSERT_EQ(fetched().size(), 2u);
  hit(8);
  advance(milliseconds{16});
  read();
  fetch(3, 8);
  EXPECT_EQ(fetched().size(), 2u);
  hit(8);
  read();
  EXPECT_EQ(fetched().back().l2_pages->size(), 8u);
}

TEST_F(PrefetchFasterTest, RanksTakeTheSame) {
  start(2);
  // Rank 0 reads its pages in 1 ms each, rank 1 in 100 ms.
  fetch(1, 8);
  for (auto rank = size_t{0}; rank < 2; ++rank)
    hit(8, rank);
  advance(milliseconds{8});
  read({}, ec::none, 0);
  advance(milliseconds{792});
  read({}, ec::none, 1);
  fetch(2, 8);
  for (auto rank = size_t{0}; rank < 2; ++rank)
    hit(8, rank);
  for (auto rank = size_t{0}; rank < 2; ++rank) {
    ASSERT_EQ(fetched(rank).size(), 2u);
    EXPECT_TRUE(fetched(rank)[1].l2_pages->empty());
    EXPECT_EQ(fetched(rank)[1].found, 8u);
    EXPECT_EQ(fetched(rank)[1].why, miss_reason::faster_to_compute);
    EXPECT_EQ(fetched(rank)[1].load_estimate, milliseconds{800});
    expect_no_page_lost(400, rank);
  }
}

TEST_F(PrefetchFasterTest, TakesTheFastTierAndLeavesTheSlowOne) {
  start(1);
  const auto serve = [this](fetch_id id, size_t upper, size_t lower, milliseconds time) {
    fetch(id, upper + lower);
    hit_tiers(upper, lower);
    advance(time);
    for (auto left = waiting("get"); left > 0; --left)
      read();
  };
  serve(1, 8, 0, milliseconds{8});
  advance(limits::load_probe_interval);
  serve(2, 0, 8, milliseconds{800});
  fetch(3, 16);
  hit_tiers(8, 8);
  ASSERT_EQ(reads(), std::vector<uint64_t>{8});
  read();
  ASSERT_EQ(fetched().size(), 3u);
  EXPECT_EQ(fetched()[2].l2_pages->size(), 8u);
  EXPECT_EQ(fetched()[2].found, 16u);
  EXPECT_EQ(fetched()[2].by_tier[0], 8u);
  EXPECT_EQ(fetched()[2].why, miss_reason::faster_to_compute);
  EXPECT_EQ(counters().declined_pages, 8u + 8u);
}

} // namespace
} // namespace hicache
