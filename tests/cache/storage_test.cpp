// L3: fetches that requests share, prefetches that run out of time, backups that fail or are too
// many, stores that come and go, and where a request's tokens came from.

#include "tests/cache/storage_steps.hpp"

#include <gtest/gtest.h>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

tree_options storage(prefetch_policy policy = prefetch_policy::wait_complete) {
  auto options = with_storage(policy);
  options.l1_pages = 32;
  options.l2_pages = 40;
  options.prefetch_reserve_pages = 16;
  options.prefetch.timeout_base = 1s;
  options.prefetch.timeout_per_ki_token = 256s;
  options.prefetch.timeout_max = 6s;
  options.load_back_threshold_tokens = 4;
  options.storage_backend = "file";
  return options;
}

request_id open_and_fetch(tree_driver& d, const tokens_t& tokens) {
  const auto request = d.open(tokens);
  EXPECT_GT(prefetch(d, request), 0);
  return request;
}

std::vector<request_id> ready_ids(const std::vector<ready_request>& ready) {
  auto ids = std::vector<request_id>{};
  for (const auto& each : ready)
    ids.push_back(each.request);
  return ids;
}

using ids = std::vector<request_id>;

// -- one fetch for many -------------------------------------------------------

TEST(SharedFetch, RequestsForTheSamePagesShareOne) {
  auto d = tree_driver{storage()};
  put_in_store(d, A);
  const auto first = open_and_fetch(d, A);
  const auto second = open_and_fetch(d, A);
  EXPECT_EQ(d.fetches, 1);
  d.run_fetches();
  const auto ready = d.poll();
  EXPECT_EQ(ready_ids(ready), (ids{first, second}));
  for (const auto& each : ready)
    EXPECT_EQ(each.l2_tokens, 16);
  EXPECT_EQ(d.reserve.size(), 16);
  d.close(first);
  d.close(second);
}

TEST(SharedFetch, ALongerPromptGoesOnWithTheRestOfItsOwn) {
  auto d = tree_driver{storage()};
  put_in_store(d, A + B);
  const auto first = open_and_fetch(d, A);
  const auto second = open_and_fetch(d, A + B);
  EXPECT_EQ(d.fetches, 1);
  d.run_fetches();
  EXPECT_EQ(ready_ids(d.poll()), ids{first});
  EXPECT_EQ(d.fetches, 2);
  d.run_fetches();
  const auto ready = d.poll();
  EXPECT_EQ(ready_ids(ready), ids{second});
  EXPECT_EQ(ready[0].fetched_tokens, 32);
  EXPECT_EQ(ready[0].l2_tokens, 32);
  d.close(first);
  d.close(second);
}

TEST(SharedFetch, APromptThatBranchesGoesOnFromThere) {
  auto d = tree_driver{storage()};
  put_in_store(d, A + B);
  put_in_store(d, A + C);
  const auto first = open_and_fetch(d, A + B);
  const auto second = open_and_fetch(d, A + C);
  EXPECT_EQ(d.fetches, 1);
  d.run_fetches();
  EXPECT_EQ(ready_ids(d.poll()), ids{first});
  d.run_fetches();
  EXPECT_EQ(d.poll()[0].l2_tokens, 32);
  d.close(first);
  d.close(second);
}

TEST(SharedFetch, AShortCommonPartIsNotWaitedFor) {
  auto options = storage();
  options.prefetch.threshold_tokens = 12;
  auto d = tree_driver{options};
  const auto first = open_and_fetch(d, range(1, 9) + B);
  const auto second = open_and_fetch(d, range(1, 9) + C);
  EXPECT_EQ(d.fetches, 2);
  d.close(first);
  d.close(second);
}

TEST(SharedFetch, TheOneThatCannotWaitLeavesTheRestToTheOther) {
  auto d = tree_driver{storage(prefetch_policy::best_effort)};
  put_in_store(d, A);
  const auto hurried = open_and_fetch(d, A);
  const auto patient = open_and_fetch(d, A);
  d.fetch_length = [](fetch_id id, int64_t found) { return id == 1 ? 2 : found; };
  EXPECT_FALSE(schedule(d, hurried));
  EXPECT_EQ(d.terminates, 1);
  d.run_fetches();
  const auto ready = d.poll();
  ASSERT_EQ(ready_ids(ready), ids{hurried});
  EXPECT_EQ(ready[0].l2_tokens, 8);
  EXPECT_EQ(d.fetches, 2); // For the two pages that are missing.
  d.run_fetches();
  EXPECT_EQ(d.poll()[0].l2_tokens, 16);
  EXPECT_TRUE(schedule(d, patient));
  d.close(hurried);
  d.close(patient);
}

TEST(SharedFetch, EndsWhenTheLastOneIsReleased) {
  auto d = tree_driver{storage()};
  const auto first = open_and_fetch(d, A);
  const auto second = open_and_fetch(d, A);
  d.close(first);
  EXPECT_EQ(d.terminates, 0);
  d.close(second);
  EXPECT_EQ(d.terminates, 1);
}

TEST(SharedFetch, AMissIsNotAskedForAgain) {
  auto d = tree_driver{storage()};
  const auto first = open_and_fetch(d, A);
  const auto second = open_and_fetch(d, A + B);
  d.run_fetches();
  EXPECT_EQ(ready_ids(d.poll()), (ids{first, second}));
  EXPECT_EQ(d.fetches, 1);
  d.close(first);
  d.close(second);
}

TEST(Prefetch, EndsBeforeItsRequestIsScheduled) {
  auto d = tree_driver{storage()};
  put_in_store(d, A);
  const auto request = open_and_fetch(d, A);
  EXPECT_TRUE(d.tree.in_flight());
  d.run_fetches();
  EXPECT_EQ(ready_ids(d.poll()), ids{request});
  EXPECT_EQ(d.match(A), (hit{0, 16})); // For others, too.
  EXPECT_TRUE(schedule(d, request));
  d.close(request);
}

// -- time ---------------------------------------------------------------------

TEST(PrefetchTimeout, EndsAtTheStepThatIsLateEnough) {
  auto d = tree_driver{storage(prefetch_policy::timeout)};
  d.fetch_length = [](fetch_id, int64_t) { return -1; };
  d.now_ns = 10'000'000'000;
  const auto request = open_and_fetch(d, A); // 1 s + 256 s * 16 / 1024 = 5 s.
  EXPECT_FALSE(schedule(d, request));
  d.poll(); // The time begins.
  EXPECT_EQ(d.tree.next_deadline_ns(), 15'000'000'000);
  d.now_ns = 14'999'999'999;
  d.poll();
  EXPECT_EQ(d.terminates, 0);
  d.now_ns = 15'000'000'000;
  d.poll();
  EXPECT_EQ(d.terminates, 1);
  EXPECT_EQ(d.tree.next_deadline_ns(), std::nullopt);
  d.fetch_length = [](fetch_id, int64_t) { return 0; };
  d.run_fetches();
  EXPECT_EQ(ready_ids(d.poll()), ids{request});
  d.close(request);
}

TEST(PrefetchTimeout, HasALongestTime) {
  auto d = tree_driver{storage(prefetch_policy::timeout)};
  const auto request = open_and_fetch(d, A + B); // 9 s, were it not for the cap.
  d.fetch_length = [](fetch_id, int64_t) { return -1; };
  d.poll();
  EXPECT_EQ(d.tree.next_deadline_ns(), 6'000'000'000);
  d.close(request);
  EXPECT_EQ(d.tree.next_deadline_ns(), std::nullopt);
}

TEST(PrefetchTimeout, IsNoMatterUntilTheRequestCouldRun) {
  auto d = tree_driver{storage(prefetch_policy::timeout)};
  d.fetch_length = [](fetch_id, int64_t) { return -1; };
  const auto request = open_and_fetch(d, A);
  d.poll();
  d.now_ns = 60'000'000'000;
  d.poll();
  EXPECT_EQ(d.terminates, 0);
  EXPECT_FALSE(schedule(d, request));
  EXPECT_EQ(d.terminates, 1);
  d.close(request);
}

// -- backups ------------------------------------------------------------------

TEST(Backup, WhatWasNotStoredIsTriedAgainWithTheNextUse) {
  auto d = tree_driver{storage()};
  d.backup_length = [](operation_id id, uint64_t pages) { return id == 1 ? 2 : pages; };
  d.insert(A);
  d.finish();
  EXPECT_FALSE(is_in_store(d, A));
  d.insert(A);
  d.finish();
  EXPECT_TRUE(is_in_store(d, A));
  EXPECT_EQ(d.backups, (counts{4, 4}));
  d.insert(A);
  d.finish();
  EXPECT_EQ(d.backups.size(), 2);
}

TEST(Backup, NoChildIsStoredOverAMissingParent) {
  auto d = tree_driver{storage()};
  d.backup_length = [](operation_id, uint64_t) { return 0; };
  d.insert(A);
  d.finish();
  d.insert(A + B);
  d.finish();
  EXPECT_TRUE(d.store.empty());
  d.backup_length = [](operation_id, uint64_t pages) { return pages; };
  d.insert(A + B);
  d.finish();
  EXPECT_TRUE(is_in_store(d, A + B)); // The driver checks the parents of every page.
}

TEST(Backup, ChildrenFollowWhenTheirParentIsStored) {
  auto d = tree_driver{storage()};
  d.insert(A);
  d.run_writes();
  d.poll();
  d.insert(A + B);
  d.insert(A + C);
  d.run_writes();
  d.poll();
  EXPECT_EQ(d.backups, counts{4}); // A's; the others wait for it.
  d.finish();
  EXPECT_TRUE(is_in_store(d, A + B));
  EXPECT_TRUE(is_in_store(d, A + C));
}

TEST(Backup, PagesOfOneThatWasGivenUpMayLeaveTheTreeButAreNotReused) {
  auto d = tree_driver{storage()};
  d.insert(A);
  d.run_writes();
  d.poll();
  auto facts = d.offer();
  facts.backups = {backup_given_up};
  d.apply(facts);
  const auto free = d.tree.stats().l2_free;
  static_cast<void>(d.tree.evict({cache_tier::l2, 1000}));
  EXPECT_EQ(d.tree.stats().evicted_l2, 4u);
  EXPECT_EQ(d.tree.stats().l2_free, free);
  d.tree.check_invariants();
  facts.backups = {4};
  d.apply(facts);
  EXPECT_EQ(d.tree.stats().l2_free, free + 4);
  d.tree.check_invariants();
}

TEST(Backup, OneThatWasGivenUpIsOverWhenNoRankReadsItsPages) {
  auto d = tree_driver{storage()};
  d.insert(A);
  d.run_writes();
  d.poll();
  ASSERT_EQ(d.backups, counts{4});
  auto facts = d.offer();
  facts.backups = {backup_given_up};
  d.apply(facts);
  EXPECT_FALSE(d.tree.in_flight());
  EXPECT_EQ(d.tree.stats().quarantined, 4u);
  ASSERT_EQ(d.tree.backing_up().size(), 1u);
  d.apply(facts);
  facts.backups = {-1}; // A rank has heard that its store is done, another one has not begun.
  d.apply(facts);
  EXPECT_EQ(d.tree.stats().quarantined, 4u);
  d.insert(A); // May be stored again meanwhile.
  EXPECT_EQ(d.backups, (counts{4, 4}));
  EXPECT_TRUE(d.tree.in_flight());
  ASSERT_EQ(d.tree.backing_up().size(), 2u);
  EXPECT_EQ(d.tree.backing_up()[1], 1u); // Behind those that end by themselves.
  facts = d.offer();
  facts.backups = {4, 3};
  d.apply(facts);
  EXPECT_EQ(d.tree.stats().quarantined, 0u);
  EXPECT_FALSE(d.tree.in_flight());
}

TEST(Backup, OneThatBeginsInAStepTakesNoFactOfThatStep) {
  auto d = tree_driver{storage()};
  d.insert(A);
  d.run_writes();
  d.poll();
  auto facts = d.offer();
  facts.backups = {backup_given_up};
  d.apply(facts);
  d.insert(B);
  d.run_writes();
  facts = d.offer();
  ASSERT_GT(facts.writes_done, 1u);
  facts.backups = {backup_given_up}; // Of A, still. The same step begins the backup of B.
  d.apply(facts);
  ASSERT_EQ(d.backups, (counts{4, 4}));
  EXPECT_EQ(d.tree.stats().quarantined, 4u);
  EXPECT_EQ(d.drops, 1);
  EXPECT_EQ(std::vector(d.tree.backing_up().begin(), d.tree.backing_up().end()),
            (std::vector<operation_id>{2, 1}));
}

TEST(Backup, TheOldestIsDroppedWhenTooManyWait) {
  auto options = storage();
  options.backup_limit_pages = 9;
  auto d = tree_driver{options};
  for (const auto& tokens : {A, B, C}) {
    d.insert(tokens);
    d.run_writes();
    d.poll();
  }
  EXPECT_EQ(d.drops, 1);
  d.finish();
  EXPECT_FALSE(is_in_store(d, A));
  EXPECT_TRUE(is_in_store(d, B));
  EXPECT_TRUE(is_in_store(d, C));
}

TEST(Backup, UnderWriteBackWhatIsAboveASavedPageIsSavedAsWell) {
  auto options = storage();
  options.write = write_policy::write_back;
  auto d = tree_driver{options};
  d.insert(A);
  d.insert(A + B);
  d.insert(A + C);
  d.evict(16);
  d.finish();
  EXPECT_TRUE(is_in_store(d, A));
  EXPECT_TRUE(is_in_store(d, A + B) || is_in_store(d, A + C));
}

TEST(Backup, KeepsWhatItHangsFrom) {
  auto options = storage();
  options.write = write_policy::write_back;
  options.l2_pages = 8;
  options.prefetch_reserve_pages = 0;
  auto d = tree_driver{options};
  d.insert(A);
  EXPECT_TRUE(d.tree.backup(d.last_insert.node));
  d.settle();
  d.finish();
  EXPECT_TRUE(is_in_store(d, A));
  d.insert(A + B);
  d.evict_l2(32); // A is in L1 and L3 now.
  d.insert(C);
  EXPECT_TRUE(d.tree.backup(d.last_insert.node)); // L2 has room for B alone.
  d.settle();
  d.run_writes();
  d.poll();
  d.match(C);
  d.evict(16);
  d.run_writes();
  d.poll();
  d.evict(64); // A must stay until the backup of B is done.
  d.finish();
  EXPECT_TRUE(is_in_store(d, A + B));
}

// -- stores that come and go --------------------------------------------------

TEST(ChangeOfStorage, DetachingEndsEverythingAndGivesTheReserveBack) {
  auto d = tree_driver{storage()};
  put_in_store(d, C);
  d.insert(A);
  d.run_writes();
  d.poll();
  const auto request = open_and_fetch(d, C);
  const auto l2_free = d.l2_free();
  d.tree.change_storage({storage_change::action::detach});
  d.settle();
  EXPECT_EQ(d.terminates, 1);
  EXPECT_EQ(d.drops, 1);
  EXPECT_EQ(d.tree.prefetch(d.open(B))->tokens, 0);
  d.tree.change_storage({storage_change::action::release});
  d.settle();
  EXPECT_FALSE(d.is_reclaimed); // A fetch may still bring pages.
  d.run_fetches();
  EXPECT_EQ(ready_ids(d.poll()), ids{request});
  d.finish();
  EXPECT_TRUE(d.is_reclaimed);
  EXPECT_EQ(d.l2_free(), l2_free + 64 - 16);
  EXPECT_EQ(d.match(C), (hit{0, 16})); // What arrived is kept.
  EXPECT_FALSE(is_in_store(d, A));
}

TEST(ChangeOfStorage, CanBeTakenBack) {
  auto d = tree_driver{storage()};
  d.tree.change_storage({storage_change::action::detach});
  d.tree.change_storage({storage_change::action::attach, "file", storage().prefetch});
  d.settle();
  EXPECT_FALSE(d.is_reclaimed);
  EXPECT_EQ(d.reserve.size(), 16);
  d.insert(A);
  d.finish();
  EXPECT_TRUE(is_in_store(d, A));
}

TEST(ChangeOfStorage, AnotherStoreGetsWhatTheFirstOneHad) {
  auto d = tree_driver{storage()};
  d.insert(A);
  d.finish();
  d.tree.change_storage({storage_change::action::detach});
  d.tree.change_storage({storage_change::action::release});
  d.settle();
  d.store.clear();
  d.tree.change_storage({storage_change::action::attach, "cluster", storage().prefetch});
  d.settle();
  EXPECT_EQ(d.reserve.size(), 16);
  d.insert(A);
  d.finish();
  EXPECT_TRUE(is_in_store(d, A));
}

TEST(ChangeOfStorage, ABackupOfTheOldStoreSaysNothingAboutTheNew) {
  auto d = tree_driver{storage()};
  d.insert(A);
  d.run_writes();
  d.poll();
  d.run_backups(); // Stored, but no step has said so.
  d.tree.change_storage({storage_change::action::detach});
  d.tree.change_storage({storage_change::action::release});
  d.tree.change_storage({storage_change::action::attach, "cluster", storage().prefetch});
  d.settle();
  d.store.clear();
  d.finish();
  d.insert(A);
  d.finish();
  EXPECT_TRUE(is_in_store(d, A));
}

TEST(ChangeOfStorage, SettingsChangeWithIt) {
  auto d = tree_driver{storage()};
  d.tree.change_storage(
    {storage_change::action::attach, "file", {prefetch_policy::best_effort, 17}});
  d.settle();
  const auto request = d.open(A);
  EXPECT_EQ(d.tree.prefetch(request)->tokens, 0); // Below the threshold of 17.
  d.close(request);
  const auto longer = open_and_fetch(d, A + B);
  EXPECT_FALSE(schedule(d, longer));
  EXPECT_EQ(d.terminates, 1);
  d.close(longer);
}

// -- room ahead ---------------------------------------------------------------

TEST(Watermarks, StepsMakeRoomAhead) {
  auto options = storage();
  options.l1_pages = 16;
  options.l1_room = {3, 6};
  auto d = tree_driver{options};
  d.insert(A);
  d.insert(B);
  d.insert(C);
  EXPECT_EQ(d.tree.stats().l1_free, 4);
  d.finish();
  EXPECT_EQ(d.tree.stats().l1_free, 4); // Not below the low mark.
  d.insert(range(301, 309));
  EXPECT_EQ(d.tree.stats().l1_free, 2);
  d.finish();
  EXPECT_EQ(d.tree.stats().l1_free, 6);
  EXPECT_EQ(d.match(A), (hit{0, 16})); // The oldest went; L2 has it.
}

TEST(Watermarks, PageThatNearsTheEndOfL1IsWrittenAheadUnderEveryPolicy) {
  for (const auto write : {write_policy::write_through, write_policy::write_back}) {
    auto options = storage();
    options.storage_attached = false;
    options.prefetch_reserve_pages = 0;
    options.write = write;
    options.l1_pages = 16;
    options.l2_pages = 4;
    options.l1_room = {5, 6};
    auto d = tree_driver{options};
    d.insert(A);
    d.finish();
    d.insert(B);
    d.insert(C);
    d.poll();
    d.finish();
    EXPECT_EQ(d.tree.stats().l1_free, 6);
    EXPECT_EQ(d.match(A), (hit{8, 8})) << "A is the oldest, and L2 has room for its tail";
    EXPECT_EQ(d.match(B), (hit{16, 0}));
  }
}

// -- provenance ---------------------------------------------------------------

request_provenance told(const tree_driver& d, request_id request) {
  return *d.tree.provenance(request);
}

TEST(Provenance, TellsTheTiersApart) {
  auto d = tree_driver{storage()};
  d.insert(A);
  d.insert(A + B);
  d.finish();
  d.evict(16); // B is on the host only.
  put_in_store(d, A + B + C);
  const auto prompt = A + B + C + range(301, 308);
  const auto request = open_and_fetch(d, prompt);
  d.run_fetches();
  d.poll();
  EXPECT_EQ(told(d, request), request_provenance{}); // Nothing was computed yet.
  EXPECT_EQ(d.load(request).loading_tokens, 32);
  EXPECT_TRUE(d.compute(request, prompt));
  const auto expected = request_provenance{16, 16, 16, "file", 7, 0, miss_reason::none};
  EXPECT_EQ(told(d, request), expected);
  d.insert_open(request, prompt);
  EXPECT_EQ(told(d, request), expected);
  d.close(request);
  EXPECT_FALSE(d.tree.provenance(request));
}

TEST(Provenance, CountsInsertedPartsOfAPrefillAsComputed) {
  auto d = tree_driver{storage()};
  d.insert(A);
  const auto request = d.open(A + B + C);
  EXPECT_TRUE(d.compute(request, A + B));
  d.insert_open({.request = request, .tokens = share(A + B), .chunked = true});
  EXPECT_TRUE(d.compute(request, A + B + C));
  const auto expected = request_provenance{16, 0, 0, "", 32, 0, miss_reason::none};
  EXPECT_EQ(told(d, request), expected);
  d.insert_open(request, A + B + C);
  EXPECT_TRUE(d.compute(request, A + B + C + range(301, 302))); // The first token of its answer.
  EXPECT_EQ(told(d, request), expected);
  d.close(request);
}

TEST(Provenance, TellsWhatWasGivenUpAndWhy) {
  auto d = tree_driver{storage()};
  put_in_store(d, A);
  const auto cut_short = open_and_fetch(d, A);
  d.run_fetches();
  auto facts = d.offer();
  facts.fetches[0] = {1, 4, miss_reason::corrupt};
  d.apply(facts);
  d.load(cut_short);
  EXPECT_TRUE(d.compute(cut_short, A));
  EXPECT_EQ(told(d, cut_short),
            (request_provenance{0, 0, 4, "file", 12, 12, miss_reason::corrupt}));
  d.close(cut_short);
}

TEST(Provenance, TellsWhyAHostPartWasNotLoaded) {
  auto d = tree_driver{storage()};
  d.insert(A);
  d.finish();
  d.evict(16);
  const auto request = d.open(A);
  EXPECT_EQ(d.tree.load_back({request, 8})->loading_tokens, 0);
  EXPECT_TRUE(d.compute(request, A));
  EXPECT_EQ(told(d, request), (request_provenance{0, 0, 0, "", 16, 16, miss_reason::over_quota}));
  d.close(request);
}

} // namespace
} // namespace hicache
