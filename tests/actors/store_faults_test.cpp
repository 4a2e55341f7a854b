// The way to L3 and back in front of a store in which things go wrong: backup, prefetcher and
// storage actor as they are in a rank, and the test in the place of the tree.

#include "actors/backup.hpp"
#include "actors/prefetcher.hpp"
#include "actors/rank_reduction.hpp"
#include "base/limits.hpp"
#include "hicache/rank_reducer.hpp"
#include "tests/actors/storage_fixture.hpp"
#include "tests/backends/faulty_store.hpp"

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace hicache {
namespace {

using namespace hicache::test;

constexpr auto l2_size = uint32_t{64};
constexpr auto noise = uint8_t{0xAA};
constexpr auto moment = caf::timespan{std::chrono::milliseconds{1}};
/// How far the clock may go beyond a deadline before its timer fires.
constexpr auto longest_step = 1500 * moment;

/// Two objects a page.
const auto two_heads = rank_options{.heads_per_object = 1, .pages = l2_size};

class StoreFaultsTest : public actor_test {
protected:
  StoreFaultsTest() {
    rank_.actor = spawn(storage, storage_options{objects_of(rank_, two_heads), &clock}, store_);
    reduction_ = spawn(rank_reduction, std::move(make_local_reducers(1).front()));
    prefetcher_ = spawn(prefetcher, prefetcher_options{plenty, 1}, rank_.actor, reduction_);
    backup_ = spawn(backup, rank_.actor, backup_options{plenty, 1});
    tree_ = spawn(recorder, log_);
    run();
    for (auto page = page_index{1}; page < l2_size; ++page)
      free(page);
  }

  ~StoreFaultsTest() override {
    stop_all();
    store_->close(std::chrono::hours{1});
  }

  // -- faults -----------------------------------------------------------------

  /// What goes wrong with the next batches of a kind; nothing afterwards.
  void go_wrong(batch_kind kind, std::vector<store_fault> faults) {
    store_->set_faults([kind, faults, next = size_t{0}](batch_kind which) mutable {
      return which == kind && next < faults.size() ? faults[next++] : store_fault::none;
    });
  }

  void release() {
    store_->release();
    settle();
  }

  // -- the tree's part --------------------------------------------------------

  /// Writes pages `first`... of a prefix to L3.
  operation_id store(uint64_t first, uint32_t count) {
    const auto id = ++last_backup_;
    auto pages = std::vector<page_index>{};
    for (auto i = uint32_t{0}; i < count; ++i) {
      pages.push_back(free_.back());
      free_.pop_back();
      rank_.fill_by_head(pages.back(), first + i);
    }
    stored_[id] = pages;
    send_as(tree_, backup_, atom::backup_v,
            backup_command{id, names_of(first, count), pages_of(std::move(pages))});
    settle();
    return id;
  }

  /// Reads the same from L3. A lookup and a read may take as long as a batch each.
  fetch_id fetch(uint64_t first, uint32_t count) {
    const auto id = ++last_fetch_;
    fetching_[id] = {first, clock.now() + 2 * plenty + longest_step};
    send_as(tree_, prefetcher_, atom::fetch_v, fetch_command{id, names_of(first, count), 1});
    settle();
    return id;
  }

  void stage(uint32_t count) {
    auto pages = std::vector<page_index>{free_.end() - count, free_.end()};
    free_.resize(free_.size() - count);
    tell(prefetcher_, atom::stage_v, staging_command{pages_of(std::move(pages))});
  }

  void pass(caf::timespan time) {
    advance(time);
    settle();
  }

  /// Takes what has ended, and looks whether every page that was fetched has its bytes still.
  void settle() {
    run();
    for (const auto& done : std::exchange(log_->done, {})) {
      done_.insert_or_assign(done.id, done);
      if (done.is_in_quarantine)
        continue;
      const auto ended = stored_.extract(done.id);
      ASSERT_FALSE(ended.empty()) << "a backup has ended twice";
      for (const auto page : ended.mapped())
        free(page);
    }
    for (const auto& fetched : std::exchange(log_->fetched, {})) {
      fetched_.insert_or_assign(fetched.id, fetched);
      const auto ended = fetching_.extract(fetched.id);
      ASSERT_FALSE(ended.empty()) << "a fetch has ended twice";
      for (auto number = ended.mapped().first; const auto page : *fetched.l2_pages)
        ASSERT_TRUE(held_.emplace(page, number++).second) << "page " << page << " is held already";
    }
    for (const auto& [page, number] : held_)
      EXPECT_TRUE(rank_.holds_by_head(page, number)) << "page " << page << ", key " << number;
    for (const auto& [id, open] : fetching_)
      EXPECT_LT(clock.now(), open.deadline) << "fetch " << id;
  }

  /// Lets go of what was fetched.
  void forget() {
    for (const auto& [page, number] : std::exchange(held_, {}))
      free(page);
  }

  /// Pages read by the fetch, if it has ended.
  std::optional<uint64_t> arrived(fetch_id id) const {
    const auto found = fetched_.find(id);
    return found == fetched_.end() ? std::nullopt : std::optional{found->second.l2_pages->size()};
  }

  miss_reason why(fetch_id id) const { return fetched_.at(id).why; }

  std::optional<uint64_t> stored(operation_id id) const {
    const auto found = done_.find(id);
    return found == done_.end() ? std::nullopt : std::optional{found->second.stored};
  }

  const prefetcher_state& prefetching() { return state_of<prefetcher_state>(prefetcher_); }

  storage_status status() { return ask_value<storage_status>(rank_.actor, atom::status_v); }

  /// Whether each page of L2 is in one place.
  void expect_every_page_in_one_place() {
    auto pages = free_;
    const auto& reserve = prefetching().reserve;
    pages.insert(pages.end(), reserve.begin(), reserve.end());
    for (const auto& [page, number] : held_)
      pages.push_back(page);
    std::ranges::sort(pages);
    EXPECT_EQ(pages, *page_run(1, l2_size - 1));
  }

  /// Pages that nobody uses are overwritten, so that whoever still uses them is found out.
  void free(page_index page) {
    rank_.fill(page, noise);
    free_.push_back(page);
  }

  struct open_fetch {
    uint64_t first = 0;
    time_point deadline;
  };

  storage_rank rank_{two_heads};
  std::shared_ptr<faulty_store> store_ = std::make_shared<faulty_store>(
    std::make_unique<storage_queue>(make_memory_backend(0, clock), 0));
  std::shared_ptr<recording> log_ = std::make_shared<recording>();
  rank_reduction_core_actor reduction_;
  prefetcher_actor prefetcher_;
  backup_actor backup_;
  caf::actor tree_;
  std::vector<page_index> free_;
  std::map<operation_id, std::vector<page_index>> stored_;
  std::map<operation_id, operation_done> done_;
  std::map<fetch_id, open_fetch> fetching_;
  std::map<fetch_id, fetched_pages> fetched_;
  /// L2 pages that were fetched, and the keys whose bytes they have.
  std::map<page_index, uint64_t> held_;
  operation_id last_backup_ = 0;
  fetch_id last_fetch_ = 0;
};

// -- late and stuck -----------------------------------------------------------

TEST_F(StoreFaultsTest, ALateLookupIsAMissAtItsDeadlineAndTheNextOneIsNot) {
  stage(8);
  store(100, 4);
  go_wrong(batch_kind::lookup, {store_fault::late});
  const auto late = fetch(100, 4);
  pass(plenty - moment);
  EXPECT_FALSE(arrived(late));
  pass(moment);
  EXPECT_EQ(arrived(late), 0u);
  EXPECT_EQ(why(late), miss_reason::late);
  EXPECT_EQ(arrived(fetch(100, 4)), 4u);
  release();
  EXPECT_EQ(status().stuck_calls, 0u);
  expect_every_page_in_one_place();
}

TEST_F(StoreFaultsTest, ALateReadKeepsItsPagesUntilItReturns) {
  stage(6);
  store(100, 4);
  store(200, 4);
  go_wrong(batch_kind::read, {store_fault::late});
  const auto late = fetch(100, 4);
  pass(plenty - moment);
  EXPECT_FALSE(arrived(late));
  pass(moment);
  EXPECT_EQ(arrived(late), 0u);
  EXPECT_EQ(why(late), miss_reason::late);
  const auto next = fetch(200, 4);
  EXPECT_EQ(arrived(next), 2u);
  EXPECT_EQ(why(next), miss_reason::no_room); // Four pages are in quarantine.
  release();                                  // The late read writes to its pages.
  EXPECT_EQ(arrived(fetch(202, 2)), 2u);
  expect_every_page_in_one_place();
}

TEST_F(StoreFaultsTest, AReadInTimeIsAsGoodAsAnyOther) {
  stage(4);
  store(100, 4);
  go_wrong(batch_kind::read, {store_fault::late});
  const auto slow = fetch(100, 4);
  pass(plenty - moment);
  release();
  EXPECT_EQ(arrived(slow), 4u);
  expect_every_page_in_one_place();
}

TEST_F(StoreFaultsTest, AStuckReadGivesThePagesThatItReported) {
  stage(8);
  store(100, 4);
  go_wrong(batch_kind::read, {store_fault::stuck});
  const auto stuck = fetch(100, 4);
  pass(plenty);
  EXPECT_EQ(arrived(stuck), 2u);
  EXPECT_EQ(why(stuck), miss_reason::late);
  EXPECT_EQ(prefetching().quarantined, 2u);
  EXPECT_EQ(arrived(fetch(100, 4)), 4u);
  const auto drained = send_request<atom::ok>(prefetcher_, atom::drain_v);
  settle();
  EXPECT_FALSE(drained.arrived());
  release();
  EXPECT_TRUE(drained.arrived());
  expect_every_page_in_one_place();
}

TEST_F(StoreFaultsTest, AStuckWriteKeepsItsPagesAndStoresTheirBytesWhenItReturns) {
  stage(8);
  go_wrong(batch_kind::write, {store_fault::stuck});
  const auto stuck = store(100, 4);
  pass(plenty - moment);
  EXPECT_FALSE(stored(stuck));
  pass(moment);
  EXPECT_EQ(stored(stuck), 0u);
  EXPECT_TRUE(done_.at(stuck).is_in_quarantine);
  EXPECT_EQ(status().quarantined_pages, 4u);
  EXPECT_EQ(stored(store(200, 4)), 4u);
  release();
  EXPECT_FALSE(done_.at(stuck).is_in_quarantine);
  EXPECT_EQ(arrived(fetch(100, 4)), 4u);
  EXPECT_EQ(arrived(fetch(200, 4)), 4u);
  expect_every_page_in_one_place();
}

// -- torn, lost, lying, full --------------------------------------------------

TEST_F(StoreFaultsTest, ATornWriteGoesOnWithThePageThatFailed) {
  stage(8);
  go_wrong(batch_kind::write, {store_fault::torn, store_fault::torn});
  const auto torn = store(100, 3); // Half of six objects: the second page has one of its two.
  EXPECT_FALSE(stored(torn));
  EXPECT_EQ(arrived(fetch(100, 3)), 1u);
  pass(storage_traffic{}.backup_pause);
  EXPECT_FALSE(stored(torn));
  pass(storage_traffic{}.backup_pause);
  EXPECT_EQ(stored(torn), 3u);
  EXPECT_EQ(arrived(fetch(100, 3)), 3u);
  expect_every_page_in_one_place();
}

TEST_F(StoreFaultsTest, OfATornReadOnlyWholePagesArrive) {
  stage(8);
  store(100, 3);
  go_wrong(batch_kind::read, {store_fault::torn});
  const auto torn = fetch(100, 3);
  EXPECT_EQ(arrived(torn), 1u);
  EXPECT_EQ(why(torn), miss_reason::failed);
  EXPECT_EQ(arrived(fetch(100, 3)), 3u);
  expect_every_page_in_one_place();
}

TEST_F(StoreFaultsTest, WhatTheStoreLostIsAMiss) {
  stage(8);
  go_wrong(batch_kind::write, {store_fault::lost});
  EXPECT_EQ(stored(store(100, 4)), 4u);
  const auto never_there = fetch(100, 4);
  EXPECT_EQ(arrived(never_there), 0u);
  EXPECT_EQ(why(never_there), miss_reason::none);
  for (const auto kind : {batch_kind::lookup, batch_kind::read}) {
    store(200, 4);
    go_wrong(kind, {store_fault::lost});
    const auto gone = fetch(200, 4);
    EXPECT_EQ(arrived(gone), 0u);
    EXPECT_EQ(why(gone), miss_reason::gone);
  }
  expect_every_page_in_one_place();
}

TEST_F(StoreFaultsTest, PagesThatDoNotVerifyAreNotServed) {
  stage(8);
  store(100, 4);
  go_wrong(batch_kind::read, {store_fault::lying});
  const auto wrong = fetch(100, 4);
  EXPECT_EQ(arrived(wrong), 0u);
  EXPECT_EQ(why(wrong), miss_reason::corrupt);
  store(100, 4);
  EXPECT_EQ(arrived(fetch(100, 4)), 4u);
  expect_every_page_in_one_place();
}

TEST_F(StoreFaultsTest, ALieAboutWhatIsThereIsAMiss) {
  stage(8);
  go_wrong(batch_kind::lookup, {store_fault::lying, store_fault::lying});
  const auto nothing = fetch(100, 4);
  EXPECT_EQ(arrived(nothing), 0u);
  EXPECT_EQ(why(nothing), miss_reason::gone);
  store(100, 4);
  EXPECT_EQ(arrived(fetch(100, 4)), 0u);
  EXPECT_EQ(arrived(fetch(100, 4)), 4u);
  expect_every_page_in_one_place();
}

TEST_F(StoreFaultsTest, AWriteThatWasDoneThoughItSaysNoIsDoneAgain) {
  stage(8);
  go_wrong(batch_kind::write, {store_fault::lying});
  const auto denied = store(100, 4);
  EXPECT_FALSE(stored(denied));
  pass(storage_traffic{}.backup_pause);
  EXPECT_EQ(stored(denied), 4u);
  EXPECT_EQ(arrived(fetch(100, 4)), 4u);
  expect_every_page_in_one_place();
}

TEST_F(StoreFaultsTest, AFullStoreIsReadAndWrittenAgainWhenItHasRoom) {
  stage(8);
  store(100, 4);
  store_->set_faults([](batch_kind) { return store_fault::full; });
  for (auto i = 0u; i < limits::breaker_window; ++i)
    EXPECT_EQ(stored(store(200, 4)), 0u);
  EXPECT_EQ(status().writes.state, "closed");
  EXPECT_EQ(arrived(fetch(100, 4)), 4u);
  store_->set_faults({});
  EXPECT_EQ(stored(store(200, 4)), 4u);
  EXPECT_EQ(arrived(fetch(200, 4)), 4u);
  expect_every_page_in_one_place();
}

// -- everything at once -------------------------------------------------------

class StoreFaultsByChanceTest : public StoreFaultsTest, public testing::WithParamInterface<int> {
protected:
  uint64_t below(uint64_t end) { return random_() % end; }

  /// Something that a tree does.
  void act() {
    const auto first = 100 * (1 + below(6)) + below(4);
    const auto count = static_cast<uint32_t>(1 + below(6));
    switch (below(8)) {
      case 0:
      case 1:
        if (free_.size() > 2 * count)
          store(first, count);
        break;
      case 2:
      case 3:
        fetch(first, count);
        break;
      case 4:
        if (!fetching_.empty())
          tell(prefetcher_, atom::terminate_v, terminate_command{fetching_.begin()->first});
        break;
      case 5:
        if (!stored_.empty())
          tell(backup_, atom::drop_v, drop_command{stored_.begin()->first});
        break;
      case 6:
        forget();
        break;
      case 7:
        if (const auto staged = static_cast<uint32_t>(below(4)); free_.size() > 8 + staged)
          stage(staged);
        break;
    }
  }

  /// The store stores and gives all that it is asked to.
  bool is_well(uint64_t first) {
    const auto written = store(first, 4);
    const auto read = fetch(first, 4);
    pass(moment);
    return stored(written) == 4u && arrived(read) == 4u;
  }

  std::mt19937_64 random_{static_cast<uint64_t>(GetParam())};
};

TEST_P(StoreFaultsByChanceTest, NothingWrongIsServedEverythingEndsAndTheStoreIsUsedAgain) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  stage(12);
  for (auto round = 0; round < 600 && !HasFatalFailure(); ++round) {
    // Good and bad times take turns.
    if (round % 60 == 0)
      store_->set_faults(faults_by_chance(random_(), round % 120 == 0 ? 0.1 : 0.7));
    act();
    if (below(3) == 0)
      store_->release_one(store_fault::late);
    if (below(40) == 0)
      store_->release_one(store_fault::stuck);
    pass(moment * below(longest_step / moment));
  }
  store_->set_faults({});
  release();
  // No command is left behind, whatever became of it.
  for (auto i = 0; i < 20; ++i)
    pass(plenty);
  EXPECT_TRUE(stored_.empty());
  EXPECT_TRUE(fetching_.empty());
  EXPECT_EQ(status().stuck_calls, 0u);
  expect_every_page_in_one_place();
  // One page at a time may go to a store whose breaker is open.
  forget();
  stage(12);
  auto is_used = false;
  for (auto i = 0u; i < 4 && !is_used; ++i) {
    pass(breaker_policy{}.pause_max);
    is_used = is_well(1000 * (1 + i));
  }
  EXPECT_TRUE(is_used);
  EXPECT_TRUE(is_well(10'000));
}

INSTANTIATE_TEST_SUITE_P(Seeds, StoreFaultsByChanceTest, testing::Range(0, 20));

} // namespace
} // namespace hicache
