// L3: backup and prefetch.

#include "base/limits.hpp"
#include "tests/cache/storage_steps.hpp"

#include <gtest/gtest.h>

#include <algorithm>

using namespace hicache;
using namespace hicache::test;

namespace {

tree_options storage(prefetch_policy policy = prefetch_policy::best_effort) {
  return with_storage(policy);
}

/// A prefetch from beginning to end; the request stays open.
std::vector<ready_request> fetch(tree_driver& d, request_id request) {
  EXPECT_GT(prefetch(d, request), 0);
  d.run_fetches();
  EXPECT_FALSE(schedule(d, request));
  return d.poll();
}

void finish(tree_driver& d) {
  d.run_all();
  d.poll();
}

} // namespace

TEST(Backup, FollowsTheWriteAndHappensOnce) {
  auto d = tree_driver{storage()};
  d.insert(A);
  EXPECT_TRUE(d.backups.empty());
  finish(d);
  EXPECT_EQ(d.backups, counts{4});
  EXPECT_TRUE(d.tree.in_flight());
  d.run_backups();
  EXPECT_TRUE(d.tree.in_flight());
  d.poll();
  EXPECT_FALSE(d.tree.in_flight());
  for (const auto& key : hash_pages(A, 4, nullptr))
    EXPECT_TRUE(d.store.contains(key));
  d.insert(A);
  finish(d);
  EXPECT_EQ(d.backups, counts{4});
}

TEST(Backup, NamesEachPagesParent) {
  auto tree = prefix_cache{storage()};
  const auto write = [&](request_id id, const tokens_t& tokens, uint64_t writes) {
    EXPECT_TRUE(tree.match({id, {}, share(tokens), tokens.size()}));
    EXPECT_TRUE(tree.allocate({id, tokens.size()}));
    EXPECT_TRUE(tree.insert({id, share(tokens)}));
    auto facts = step_facts{writes};
    facts.backups.assign(tree.backing_up().size(), 4);
    tree.step(facts, {});
    for (auto& effect : tree.take_effects())
      if (const auto* backup = std::get_if<backup_command>(&effect))
        return *backup;
    return backup_command{};
  };
  const auto keys = hash_pages(A + B, 4, nullptr);
  const auto first = write(1, A, 1);
  ASSERT_TRUE(first.names);
  EXPECT_EQ(first.names->get(0, first.names->size()), std::vector(keys.begin(), keys.begin() + 4));
  EXPECT_EQ(first.names->before(0), page_key{});
  const auto second = write(2, A + B, 2);
  ASSERT_TRUE(second.names);
  EXPECT_EQ(second.names->get(0, second.names->size()), std::vector(keys.begin() + 4, keys.end()));
  EXPECT_EQ(second.names->before(0), keys[3]);
}

TEST(Backup, KeepsItsHostPages) {
  auto options = storage();
  options.l2_pages = 6;
  options.prefetch_reserve_pages = 2;
  auto d = tree_driver{options};
  d.insert(A);
  d.run_writes();
  d.poll();
  d.evict(16);
  d.insert(B);
  EXPECT_EQ(d.writes, counts{4});
  d.finish();
  EXPECT_EQ(d.writes, (counts{4, 1, 1, 1, 1})) << "B is staged";
  EXPECT_EQ(d.match(A), (hit{0, 12}));
}

TEST(Backup, SplitWhileInFlight) {
  auto d = tree_driver{storage()};
  d.insert(A);
  d.run_writes();
  d.poll();
  d.match(range(1, 9));
  finish(d);
  d.insert(range(1, 9) + range(201, 205));
  finish(d);
  EXPECT_EQ(d.backups, (counts{4, 1}));
}

TEST(Backup, CoversANodeThatWasSplitWhileItWasWritten) {
  auto d = tree_driver{storage()};
  d.insert(A);
  d.match(range(1, 9));
  finish(d);
  EXPECT_EQ(d.backups, counts{4});
}

TEST(Backup, IsNotRepeatedWhenTheHostCopyIsWrittenAgain) {
  auto options = storage();
  options.prefetch_reserve_pages = 12;
  auto d = tree_driver{options};
  d.insert(A);
  d.finish();
  d.insert(B);
  d.finish();
  EXPECT_EQ(d.backups, (counts{4, 1, 1, 1, 1}));
  EXPECT_EQ(d.writes, d.backups);
  // B was staged in the room of A's last page, which is written anew when it leaves L1.
  d.evict(4);
  d.finish();
  EXPECT_EQ(d.match(A), (hit{12, 4}));
  EXPECT_EQ(d.writes, (counts{4, 1, 1, 1, 1, 1}));
  EXPECT_EQ(d.backups, (counts{4, 1, 1, 1, 1}));
}

TEST(Backup, NamesThePagesThatWereInsertedNotThoseThatWereAskedFor) {
  auto d = tree_driver{storage()};
  const auto request = d.open(A);
  prefetch(d, request);
  EXPECT_TRUE(d.compute(request, range(1, 9) + B));
  d.insert_open(request, range(1, 9) + B);
  d.close(request);
  finish(d);
  finish(d);
  for (const auto& key : hash_pages(range(1, 9) + B, 4, nullptr))
    EXPECT_TRUE(d.store.contains(key));
  EXPECT_EQ(d.store.size(), 6);
}

TEST(Prefetch, BringsPagesFromStorage) {
  auto d = tree_driver{storage()};
  put_in_store(d, A);
  EXPECT_EQ(d.l2_free(), 32);
  EXPECT_EQ(d.reserve.size(), 8);
  const auto request = d.open(A);
  const auto ready = fetch(d, request);
  ASSERT_EQ(ready.size(), 1);
  EXPECT_EQ(ready[0].request, request);
  EXPECT_EQ(ready[0].fetched_tokens, 16);
  EXPECT_EQ(ready[0].l1_tokens, 0);
  EXPECT_EQ(ready[0].l2_tokens, 16);
  EXPECT_EQ(d.reserve.size(), 8);
  EXPECT_EQ(d.l2_free(), 16);
  EXPECT_EQ(d.terminates, 1);
  d.close(request);
  EXPECT_EQ(d.match(A), (hit{0, 16}));
}

TEST(Prefetch, UsesTheKeysOfTheNamespace) {
  auto d = tree_driver{storage()};
  const auto ns = cache_namespace{"lora1", "tenant-a"};
  put_in_store(d, A, ns);
  const auto other = d.open(A);
  EXPECT_EQ(fetch(d, other)[0].fetched_tokens, 0);
  const auto request = d.open(A, ns);
  EXPECT_EQ(fetch(d, request)[0].fetched_tokens, 16);
  d.close(request);
  d.close(other);
  EXPECT_EQ(d.match(A, ns), (hit{0, 16}));
  EXPECT_EQ(d.match(A), (hit{0, 0}));
}

TEST(Prefetch, TakesWhatStorageHas) {
  auto d = tree_driver{storage()};
  put_in_store(d, range(1, 9));
  const auto request = d.open(A);
  EXPECT_EQ(fetch(d, request)[0].fetched_tokens, 8);
  d.close(request);
  EXPECT_EQ(d.match(A), (hit{0, 8}));
}

TEST(Prefetch, StopsAtAGap) {
  auto d = tree_driver{storage()};
  put_in_store(d, A);
  d.store.erase(hash_pages(A, 4, nullptr)[1]);
  const auto request = d.open(A);
  EXPECT_EQ(fetch(d, request)[0].fetched_tokens, 4);
  d.close(request);
  EXPECT_EQ(d.match(A), (hit{0, 4}));
}

TEST(Prefetch, EmptyStorageMakesTheRequestReady) {
  auto d = tree_driver{storage()};
  const auto request = d.open(A);
  const auto ready = fetch(d, request);
  ASSERT_EQ(ready.size(), 1);
  EXPECT_EQ(ready[0].fetched_tokens, 0);
  EXPECT_EQ(d.l2_free(), 32);
  EXPECT_EQ(d.reserve.size(), 8);
  d.close(request);
}

TEST(Prefetch, IsDeclinedWhereItIsNotWorthIt) {
  auto options = storage();
  options.prefetch.threshold_tokens = 17;
  auto d = tree_driver{options};
  const auto request = d.open(A);
  EXPECT_EQ(prefetch(d, request), 0);
  EXPECT_EQ(d.fetches, 0);
  EXPECT_TRUE(schedule(d, request));
  d.close(request);
  const auto longer = d.open(A + B);
  EXPECT_EQ(prefetch(d, longer), 32);
  EXPECT_EQ(prefetch(d, longer), 0);
  d.close(longer);
}

TEST(Prefetch, IsDeclinedWithoutStorageOrHost) {
  auto options = storage();
  options.storage_attached = false;
  auto without_storage = tree_driver{options};
  EXPECT_EQ(prefetch(without_storage, without_storage.open(A)), 0);
  EXPECT_TRUE(without_storage.reserve.empty());
  options = storage();
  options.l2_pages = 0;
  options.prefetch_reserve_pages = 0;
  auto without_l2 = tree_driver{options};
  EXPECT_EQ(prefetch(without_l2, without_l2.open(A)), 0);
}

TEST(Prefetch, IsDeclinedWhenStopped) {
  auto d = tree_driver{storage()};
  const auto request = d.open(A);
  d.tree.stop_serving();
  EXPECT_EQ(prefetch(d, request), 0);
  d.close(request);
}

TEST(Prefetch, OpenOnesAreBounded) {
  auto d = tree_driver{storage()};
  for (auto id = request_id{1}; id <= limits::prefetches_open + 1; ++id) {
    const auto first = static_cast<token_id>(id);
    ASSERT_TRUE(d.tree.match({id, {}, share(range(first, first + 16)), 16}));
    EXPECT_EQ(d.tree.prefetch(id)->tokens, id <= limits::prefetches_open ? 16 : 0);
  }
}

TEST(Prefetch, FetchesNoMoreThanTheReserve) {
  auto options = storage();
  options.prefetch_reserve_pages = 2;
  auto d = tree_driver{options};
  put_in_store(d, A);
  const auto request = d.open(A);
  EXPECT_EQ(fetch(d, request)[0].fetched_tokens, 8);
  EXPECT_EQ(d.reserve.size(), 2);
  d.close(request);
}

TEST(Prefetch, KeepsWhatCameBeforeAFailure) {
  auto d = tree_driver{storage()};
  put_in_store(d, A);
  d.fetch_length = [](fetch_id, int64_t) { return 2; };
  const auto request = d.open(A);
  EXPECT_EQ(fetch(d, request)[0].fetched_tokens, 8);
  d.close(request);
  EXPECT_EQ(d.match(A), (hit{0, 8}));
}

TEST(Prefetch, PagesBeyondTheAgreedLengthGoBack) {
  auto d = tree_driver{storage()};
  put_in_store(d, A);
  const auto request = d.open(A);
  prefetch(d, request);
  d.run_fetches();
  schedule(d, request);
  auto facts = d.offer();
  ASSERT_EQ(facts.fetches.size(), 1);
  EXPECT_EQ(facts.fetches[0].arrived, 4);
  facts.fetches[0].arrived = 1;
  EXPECT_EQ(d.apply(facts)[0].fetched_tokens, 4);
  EXPECT_EQ(d.reserve.size(), 8);
  EXPECT_EQ(d.l2_free(), 28);
  d.close(request);
}

TEST(Prefetch, ReleaseBeforeTheQueryLeavesNothing) {
  auto d = tree_driver{storage()};
  const auto request = d.open(A);
  prefetch(d, request);
  d.close(request);
  EXPECT_EQ(d.terminates, 1);
  EXPECT_EQ(d.tree.fetching().size(), 1);
  EXPECT_TRUE(d.tree.in_flight());
  d.fetch_length = [](fetch_id, int64_t) { return 0; };
  d.run_fetches();
  EXPECT_TRUE(d.poll().empty());
  EXPECT_FALSE(d.tree.in_flight());
  EXPECT_EQ(d.l2_free(), 32);
  EXPECT_EQ(d.tree.stats().nodes, 0);
}

TEST(Prefetch, WhatArrivedForAReleasedRequestIsKept) {
  auto d = tree_driver{storage(prefetch_policy::wait_complete)};
  put_in_store(d, A);
  const auto request = d.open(A);
  prefetch(d, request);
  d.run_fetches();
  d.close(request);
  EXPECT_EQ(d.terminates, 1);
  EXPECT_TRUE(d.poll().empty());
  EXPECT_EQ(d.match(A), (hit{0, 16}));
  EXPECT_EQ(d.reserve.size(), 8);
}

TEST(Prefetch, WhatArrivedBehindAPathThatIsGoneGoesBack) {
  auto options = storage();
  options.l2_pages = 8;
  auto d = tree_driver{options};
  put_in_store(d, A + B);
  d.insert(A);
  EXPECT_TRUE(d.writes.empty());
  const auto request = d.open(A + B);
  prefetch(d, request);
  d.run_fetches();
  EXPECT_EQ(d.reserve.size(), 4);
  d.close(request);
  d.evict(4);
  EXPECT_TRUE(d.poll().empty());
  EXPECT_EQ(d.match(A + B), (hit{12, 0}));
  EXPECT_EQ(d.reserve.size(), 8);
}

TEST(Prefetch, WaitCompleteWaits) {
  auto d = tree_driver{storage(prefetch_policy::wait_complete)};
  put_in_store(d, A);
  const auto request = d.open(A);
  prefetch(d, request);
  EXPECT_FALSE(schedule(d, request));
  EXPECT_FALSE(schedule(d, request));
  EXPECT_EQ(d.tree.fetching().size(), 1);
  EXPECT_EQ(d.terminates, 0);
  EXPECT_TRUE(d.poll().empty());
  EXPECT_TRUE(d.tree.in_flight());
  d.run_fetches();
  EXPECT_EQ(d.poll()[0].fetched_tokens, 16);
  EXPECT_TRUE(schedule(d, request));
  d.close(request);
}

TEST(Prefetch, RequestsBecomeReadyInTheOrderOfTheirPrefetches) {
  auto d = tree_driver{storage()};
  put_in_store(d, A);
  put_in_store(d, B);
  const auto first = d.open(A);
  const auto second = d.open(B);
  prefetch(d, first);
  prefetch(d, second);
  schedule(d, second);
  schedule(d, first);
  d.run_fetches();
  const auto ready = d.poll();
  ASSERT_EQ(ready.size(), 2);
  EXPECT_EQ(ready[0].request, first);
  EXPECT_EQ(ready[1].request, second);
  d.close(first);
  d.close(second);
}

TEST(Prefetch, OneRequestMayWaitWhileAnotherIsReady) {
  auto d = tree_driver{storage()};
  put_in_store(d, A);
  put_in_store(d, B);
  const auto first = d.open(A);
  const auto second = d.open(B);
  prefetch(d, first);
  prefetch(d, second);
  schedule(d, first);
  schedule(d, second);
  d.fetch_length = [](fetch_id id, int64_t found) { return id == 1 ? -1 : found; };
  d.run_fetches();
  auto ready = d.poll();
  ASSERT_EQ(ready.size(), 1);
  EXPECT_EQ(ready[0].request, second);
  d.fetch_length = [](fetch_id, int64_t found) { return found; };
  d.run_fetches();
  ready = d.poll();
  ASSERT_EQ(ready.size(), 1);
  EXPECT_EQ(ready[0].request, first);
  d.close(first);
  d.close(second);
}

TEST(Prefetch, FetchedPagesAreLoadedAndNotWrittenAgain) {
  auto d = tree_driver{storage()};
  put_in_store(d, A);
  const auto request = d.open(A + B);
  EXPECT_EQ(fetch(d, request)[0].l2_tokens, 16);
  const auto result = d.load(request);
  EXPECT_EQ(result.loading_tokens, 16);
  EXPECT_EQ(result.from_storage_tokens, 16);
  finish(d);
  EXPECT_EQ(d.match(A), (hit{16, 0}));
  EXPECT_TRUE(d.compute(request, A + B));
  EXPECT_EQ(d.tree.insert({request, share(A + B)})->duplicate_tokens, 0);
  d.settle();
  finish(d);
  finish(d);
  EXPECT_EQ(d.writes, counts{4});
  EXPECT_EQ(d.backups, counts{4});
  d.close(request);
}

TEST(Prefetch, FetchedPagesAreKnownToBeStored) {
  auto options = storage();
  options.l2_pages = 12;
  auto d = tree_driver{options};
  put_in_store(d, A);
  const auto request = d.open(A);
  d.fetch_length = [](fetch_id, int64_t) { return 4; };
  EXPECT_EQ(fetch(d, request)[0].fetched_tokens, 16);
  EXPECT_EQ(d.load(request).loading_tokens, 16);
  d.close(request);
  finish(d);
  // B is staged in the room of A's last page, which is written anew when it leaves L1.
  d.insert(B);
  d.finish();
  EXPECT_EQ(d.backups, (counts{1, 1, 1, 1}));
  d.evict(4);
  d.finish();
  EXPECT_EQ(d.match(A), (hit{12, 4}));
  EXPECT_EQ(d.writes, (counts{1, 1, 1, 1, 1}));
  EXPECT_EQ(d.backups, (counts{1, 1, 1, 1}));
}

TEST(Prefetch, PagesThatOthersBroughtMeanwhileAreDuplicates) {
  auto d = tree_driver{storage()};
  put_in_store(d, A);
  const auto request = d.open(A);
  prefetch(d, request);
  d.run_fetches();
  schedule(d, request);
  d.insert(range(1, 9));
  const auto l2_free = d.l2_free();
  const auto ready = d.poll();
  ASSERT_EQ(ready.size(), 1);
  EXPECT_EQ(ready[0].fetched_tokens, 8);
  EXPECT_EQ(ready[0].l1_tokens, 8);
  EXPECT_EQ(ready[0].l2_tokens, 8);
  EXPECT_EQ(d.reserve.size(), 8);
  EXPECT_EQ(d.l2_free(), l2_free - 8);
  d.close(request);
}

TEST(Prefetch, ReserveIsToppedUpWhenThereIsRoomAgain) {
  auto options = storage();
  options.l2_pages = 8;
  auto d = tree_driver{options};
  put_in_store(d, A);
  const auto request = d.open(A);
  EXPECT_EQ(fetch(d, request)[0].fetched_tokens, 16);
  // The request holds what would have to make room.
  EXPECT_EQ(d.reserve.size(), 4);
  d.close(request);
  d.poll();
  EXPECT_EQ(d.reserve.size(), 8);
  EXPECT_EQ(d.match(A), (hit{0, 0}));
}

TEST(Prefetch, AnyOfVeryManyMayEndFirst) {
  auto d = tree_driver{storage()};
  auto requests = std::vector<request_id>{};
  const auto many = static_cast<token_id>(3 * limits::step_fetches + 5);
  for (auto i = token_id{0}; i < many; ++i) {
    requests.push_back(d.open(range(1000 * i + 1, 1000 * i + 9)));
    EXPECT_EQ(prefetch(d, requests.back()), 8);
  }
  put_in_store(d, range(1000 * (many - 1) + 1, 1000 * (many - 1) + 9));
  // The last one ends first, then one in the middle; the others are stuck.
  for (const auto ends : {fetch_id{many}, fetch_id{many / 2}}) {
    d.fetch_length = [=](fetch_id id, int64_t found) { return id == ends ? found : -1; };
    d.run_fetches();
    auto ready = std::vector<ready_request>{};
    for (auto steps = 0; steps < 2 && ready.empty(); ++steps)
      ready = d.poll();
    ASSERT_EQ(ready.size(), 1) << "two steps are enough";
    EXPECT_EQ(ready[0].request, requests[ends - 1]);
    EXPECT_EQ(ready[0].l2_tokens, ends == many ? 8 : 0);
  }
  d.fetch_length = [](fetch_id, int64_t found) { return found; };
  d.run_fetches();
  auto ended = size_t{2};
  for (auto steps = 0; steps < 4; ++steps) {
    const auto ready = d.poll();
    EXPECT_TRUE(std::ranges::is_sorted(ready, {}, &ready_request::request));
    ended += ready.size();
  }
  EXPECT_EQ(ended, many);
  EXPECT_FALSE(d.tree.in_flight());
}
