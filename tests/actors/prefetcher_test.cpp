#include "tests/actors/prefetcher_fixture.hpp"

namespace hicache {
namespace {

using namespace hicache::test;

TEST_F(PrefetcherTest, BringsWhatTheStoreHas) {
  start(1);
  fetch(1, 10, 4);
  ASSERT_EQ(ranks_[0].held->size(), 1u);
  EXPECT_EQ(ranks_[0].held->front().batch.names->get(0, 1), std::vector{key_of(1004)});
  EXPECT_EQ(ranks_[0].held->front().batch.count, 6u);
  EXPECT_EQ(ranks_[0].held->front().timeout, timeout);
  hit(5);
  ASSERT_EQ(reads(), std::vector<uint64_t>{5});
  EXPECT_EQ(ranks_[0].held->front().batch.first, 0u);
  read();
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_EQ(fetched()[0].id, 1u);
  EXPECT_EQ(fetched()[0].l2_pages->size(), 5u);
  expect_no_page_lost(400);
  EXPECT_EQ(counters().bytes_l3_to_l2, 5 * page_bytes);
}

TEST_F(PrefetcherTest, HitsBelowTheThresholdAreGivenUp) {
  start(1, 6);
  fetch(1, 10);
  hit(5);
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_TRUE(fetched()[0].l2_pages->empty());
  EXPECT_TRUE(reads().empty());
  expect_no_page_lost(400);
}

TEST_F(PrefetcherTest, MissIsAnsweredAtOnce) {
  start(1);
  fetch(1, 10);
  hit(0);
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_TRUE(fetched()[0].l2_pages->empty());
}

TEST_F(PrefetcherTest, ShortReserveFetchesFewer) {
  start(1, 2, 3);
  fetch(1, 10);
  hit(8);
  EXPECT_EQ(reads(), std::vector<uint64_t>{3});
  read();
  EXPECT_EQ(fetched()[0].l2_pages->size(), 3u);
  fetch(2, 10);
  hit(8); // Nothing is left for this one.
  ASSERT_EQ(fetched().size(), 2u);
  EXPECT_TRUE(fetched()[1].l2_pages->empty());
  expect_no_page_lost(3);
}

TEST_F(PrefetcherTest, LongFetchesKeepFourBatchesUnderWay) {
  start(1, 2, 656);
  fetch(1, 656);
  hit(656);
  EXPECT_EQ(reads(), (std::vector<uint64_t>{128, 128, 128, 128}));
  read();
  EXPECT_EQ(reads(), (std::vector<uint64_t>{128, 128, 128, 128}));
  read();
  EXPECT_EQ(reads(), (std::vector<uint64_t>{128, 128, 128, 16}));
  for (auto i = 0; i < 4; ++i)
    read();
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_EQ(fetched()[0].l2_pages->size(), 656u);
  expect_no_page_lost(656);
}

TEST_F(PrefetcherTest, ReadsAreAsItsTrafficSays) {
  traffic_ = {.batch_pages = 50, .batches_in_flight = 2};
  start(1);
  fetch(1, 120);
  hit(120);
  EXPECT_EQ(reads(), (std::vector<uint64_t>{50, 50}));
  read();
  EXPECT_EQ(reads(), (std::vector<uint64_t>{50, 20}));
}

TEST_F(PrefetcherTest, FailedPageEndsThePrefixAndTheReading) {
  start(1, 2, 656);
  fetch(1, 656);
  hit(656);
  read(uint64_t{100});
  EXPECT_TRUE(fetched().empty()); // The other batches may still write to their pages.
  EXPECT_EQ(reads(), (std::vector<uint64_t>{128, 128, 128}));
  for (auto i = 0; i < 3; ++i)
    read();
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_EQ(fetched()[0].l2_pages->size(), 100u);
  expect_no_page_lost(656);
  EXPECT_EQ(counters().storage_failures, 1u);
}

TEST_F(PrefetcherTest, PageGoneSinceTheLookUpIsNoFailure) {
  start(1);
  fetch(1, 4);
  hit(4);
  read(uint64_t{1}, ec::not_found);
  EXPECT_EQ(fetched()[0].l2_pages->size(), 1u);
  EXPECT_EQ(counters().storage_failures, 0u);
}

TEST_F(PrefetcherTest, BatchesMayEndInAnyOrder) {
  start(1);
  fetch(1, 200);
  hit(200);
  std::swap(ranks_[0].held->front(), ranks_[0].held->back());
  read();
  EXPECT_TRUE(fetched().empty());
  read(uint64_t{127});
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_EQ(fetched()[0].l2_pages->size(), 127u);
  expect_no_page_lost(400);
}

TEST_F(PrefetcherTest, TerminatedBeforeTheHitIsKnownEndsEmpty) {
  start(1);
  fetch(1, 10);
  terminate(1);
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_TRUE(fetched()[0].l2_pages->empty());
  hit(10); // Too late; nothing is read.
  EXPECT_TRUE(reads().empty());
  EXPECT_EQ(fetched().size(), 1u);
  expect_no_page_lost(400);
}

TEST_F(PrefetcherTest, TerminatedFetchesDoNotHoldUpThoseBehindThem) {
  start(2);
  fetch(1, 10);
  fetch(2, 10);
  for (auto rank = size_t{0}; rank < 2; ++rank)
    terminate(1, rank);
  // The store has said nothing about the first one yet.
  for (auto rank = size_t{0}; rank < 2; ++rank) {
    std::swap(ranks_[rank].held->front(), ranks_[rank].held->back());
    hit(6, rank);
  }
  EXPECT_EQ(reads(0), std::vector<uint64_t>{6});
}

TEST_F(PrefetcherTest, SaysWhatWasFoundAndWhyNoMoreArrived) {
  start(1, 3, 8);
  const auto expect = [this](size_t fetch, uint64_t found, miss_reason why) {
    ASSERT_GT(fetched().size(), fetch);
    EXPECT_EQ(fetched()[fetch].found, found) << fetch;
    EXPECT_EQ(fetched()[fetch].why, why) << to_string(fetched()[fetch].why);
  };
  fetch(1, 10);
  hit(4);
  read();
  expect(0, 4, miss_reason::none);
  fetch(2, 10);
  hit(2);
  expect(1, 2, miss_reason::too_short);
  fetch(3, 10);
  hit(6);
  read();
  expect(2, 6, miss_reason::no_room);
  tell(ranks_[0].prefetcher, atom::stage_v, staging_command{page_run(100, 20)});
  fetch(4, 10);
  hit(4);
  read(uint64_t{1}, ec::not_found);
  expect(3, 4, miss_reason::gone);
  fetch(5, 10);
  hit(4);
  read(uint64_t{1}, ec::corrupt_page);
  expect(4, 4, miss_reason::corrupt);
  fetch(6, 10);
  answer("exists", to_caf({ec::deadline_exceeded, ""}));
  expect(5, 0, miss_reason::late);
  fetch(7, 10);
  hit(5);
  terminate(7);
  expect(6, 5, miss_reason::stopped);
  fetch(8, 10);
  hit(0);
  expect(7, 0, miss_reason::none);
  fetch(9, 10);
  answer("exists", to_caf({ec::io_failure, ""}));
  expect(8, 0, miss_reason::failed);
  fetch(10, 10);
  answer("exists", to_caf({ec::store_unavailable, ""}));
  expect(9, 0, miss_reason::unavailable);
  EXPECT_EQ(counters().storage_failures, 3u); // Neither absent pages, nor a store left alone.
}

TEST_F(PrefetcherTest, PagesOfAReadThatDoesNotReturnStayOutOfTheReserve) {
  start(1, 2, 10);
  fetch(1, 4);
  hit(4);
  answer("get", storage_outcome{std::vector<ec>(4, ec::deadline_exceeded), 0, 7});
  ASSERT_EQ(fetched().size(), 1u); // The fetch is over all the same.
  EXPECT_TRUE(fetched()[0].l2_pages->empty());
  EXPECT_EQ(fetched()[0].found, 4u);
  EXPECT_EQ(fetched()[0].why, miss_reason::late);
  const auto& state = state_of<prefetcher_state>(ranks_[0].prefetcher);
  EXPECT_EQ(state.reserve.size(), 6u);
  EXPECT_EQ(state.quarantined, 4u);
  const auto drained = drain();
  EXPECT_FALSE(drained.arrived());
  fetch(2, 10); // It finds the reserve shorter, and no more.
  hit(10);
  EXPECT_EQ(reads(), std::vector<uint64_t>{6});
  read();
  EXPECT_FALSE(drained.arrived());
  answer("drain", atom::ok_v);
  EXPECT_TRUE(drained.arrived());
  expect_no_page_lost(10);
}

TEST_F(PrefetcherTest, IsDrainedWhenNothingOfItIsAtTheStore) {
  start(1);
  EXPECT_TRUE(drain().arrived());
  fetch(1, 4);
  hit(4);
  fetch(2, 4);
  terminate(2);
  const auto drained = drain();
  EXPECT_FALSE(drained.arrived());
  read();
  EXPECT_FALSE(drained.arrived()); // The second one's query is still out.
  hit(4);
  EXPECT_TRUE(drained.arrived());
}

TEST_F(PrefetcherTest, WithoutAStoreNothingIsFound) {
  start(1);
  tell(ranks_[0].prefetcher, atom::attach_v, caf::strong_actor_ptr{});
  fetch(1, 4);
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_TRUE(fetched()[0].l2_pages->empty());
  EXPECT_TRUE(ranks_[0].held->empty());
  tell(ranks_[0].prefetcher, atom::attach_v,
       caf::actor_cast<caf::strong_actor_ptr>(ranks_[0].storage));
  fetch(2, 4);
  hit(4);
  read();
  EXPECT_EQ(fetched()[1].l2_pages->size(), 4u);
}

TEST_F(PrefetcherTest, TerminatedDuringReadsKeepsThePrefixThatArrived) {
  start(1, 2, 656);
  fetch(1, 656);
  hit(656);
  read();
  terminate(1);
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_EQ(fetched()[0].l2_pages->size(), 128u);
  EXPECT_EQ(reads().size(), 4u);
  // Their pages return with them, not before: the store may still write to them.
  EXPECT_EQ(state_of<prefetcher_state>(ranks_[0].prefetcher).reserve.size(), 16u);
  read();
  read();
  read();
  read(uint64_t{3});
  EXPECT_EQ(fetched().size(), 1u);
  expect_no_page_lost(656);
}

TEST_F(PrefetcherTest, TerminatedDuringAReadKeepsThePagesThatItReported) {
  start(1, 2, 10);
  fetch(1, 6);
  hit(6);
  const auto marks = ranks_[0].held->front().batch.marks;
  ASSERT_NE(marks, nullptr);
  for (const auto page : {0u, 1u, 3u})
    marks->add(page, 1);
  terminate(1);
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_EQ(fetched()[0].l2_pages->size(), 2u);
  // Page 3 is behind a gap, but the store is done with it.
  EXPECT_EQ(state_of<prefetcher_state>(ranks_[0].prefetcher).reserve.size(), 5u);
  marks->add(2, 1); // Too late: nobody was told of it.
  answer("get", storage_outcome{std::vector<ec>(6, ec::deadline_exceeded), 0, 7});
  EXPECT_EQ(state_of<prefetcher_state>(ranks_[0].prefetcher).reserve.size(), 6u);
  EXPECT_EQ(state_of<prefetcher_state>(ranks_[0].prefetcher).quarantined, 2u);
  answer("drain", atom::ok_v);
  expect_no_page_lost(10);
  EXPECT_EQ(counters().bytes_l3_to_l2, 4 * page_bytes);
}

TEST_F(PrefetcherTest, ReadsTakeThePlacesOfTheLookUp) {
  start(1);
  fetch(1, 200, 4);
  const auto places = std::make_shared<const std::vector<store_place>>(196);
  answer("exists", storage_hit{196, places});
  ASSERT_EQ(reads().size(), 2u);
  for (const auto& read : *ranks_[0].held) {
    EXPECT_EQ(read.batch.places, places);
    EXPECT_EQ(read.batch.l2_first, read.batch.first); // Page i has place i.
  }
  read();
  read();
}

TEST_F(PrefetcherTest, TerminatingWhatIsOverDoesNothing) {
  start(1);
  fetch(1, 4);
  hit(4);
  read();
  terminate(1);
  terminate(77);
  EXPECT_EQ(fetched().size(), 1u);
}

TEST_F(PrefetcherTest, SilentStoreIsAMiss) {
  start(1);
  fetch(1, 4);
  answer("exists", to_caf({ec::deadline_exceeded, ""}));
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_TRUE(fetched()[0].l2_pages->empty());
  EXPECT_EQ(counters().storage_failures, 1u);
}

TEST_F(PrefetcherTest, FailedReadRequestReturnsAllItsPages) {
  start(1);
  fetch(1, 4);
  hit(4);
  answer("get", to_caf({ec::peer_unreachable, ""}));
  ASSERT_EQ(fetched().size(), 1u);
  EXPECT_TRUE(fetched()[0].l2_pages->empty());
  expect_no_page_lost(400);
}

TEST_F(PrefetcherTest, RanksReadWhatAllOfThemHave) {
  start(3);
  fetch(1, 10);
  hit(7, 0);
  hit(4, 1);
  for (auto rank = 0u; rank < 3; ++rank)
    EXPECT_TRUE(reads(rank).empty());
  hit(9, 2);
  for (auto rank = 0u; rank < 3; ++rank) {
    EXPECT_EQ(reads(rank), std::vector<uint64_t>{4});
    read({}, ec::none, rank);
    EXPECT_EQ(fetched(rank)[0].l2_pages->size(), 4u);
    expect_no_page_lost(400, rank);
  }
}

TEST_F(PrefetcherTest, HitsMayComeInAnyOrderOnAnyRank) {
  start(2);
  for (auto id = fetch_id{1}; id <= 3; ++id)
    fetch(id, 10);
  const auto pages = std::vector<uint64_t>{5, 6, 7};
  std::reverse(ranks_[1].held->begin(), ranks_[1].held->end());
  for (auto i = 0u; i < 3; ++i)
    hit(pages[i], 0);
  EXPECT_TRUE(reads(0).empty());
  for (auto i = 0u; i < 3; ++i)
    hit(pages[2 - i] - 1, 1);
  for (auto rank = 0u; rank < 2; ++rank)
    EXPECT_EQ(reads(rank), (std::vector<uint64_t>{4, 5, 6})) << rank;
}

TEST_F(PrefetcherTest, RankThatWasToldToStopHoldsNobodyUp) {
  start(2);
  fetch(1, 10);
  terminate(1, 0);
  hit(10, 0);
  hit(10, 1);
  // What one of them does not want, the others need not read.
  EXPECT_TRUE(reads(0).empty());
  EXPECT_TRUE(reads(1).empty());
  fetch(2, 3);
  hit(3, 0);
  hit(3, 1);
  EXPECT_EQ(reads(0), std::vector<uint64_t>{3});
}

TEST_F(PrefetcherTest, WithoutItsPeersEveryFetchEndsEmpty) {
  start(2);
  fetch(1, 10);
  fetch(2, 10);
  hit(10, 0);
  stop(ranks_[1].rank_reduction);
  EXPECT_EQ(fetched(0).size(), 2u);
  fetch(3, 10);
  hit(10, 0); // Of the second one: too late.
  ASSERT_EQ(fetched(0).size(), 3u);
  for (const auto& each : fetched(0))
    EXPECT_TRUE(each.l2_pages->empty());
  expect_no_page_lost(400, 0);
}

TEST_F(PrefetcherTest, ReadsUnderWayReturnTheirPagesThoughThePeersAreLost) {
  start(2);
  fetch(1, 10);
  hit(10, 0);
  hit(10, 1);
  fetch(2, 10);
  hit(10, 0);
  stop(ranks_[1].rank_reduction);
  EXPECT_EQ(fetched(0).size(), 2u);
  read();
  expect_no_page_lost(400, 0);
}

} // namespace
} // namespace hicache
