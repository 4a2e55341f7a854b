#include "base/limits.hpp"
#include "cache/hash/page_hash.hpp"
#include "tests/actors/storage_fixture.hpp"

#include <future>
#include <map>
#include <semaphore>
#include <utility>

namespace hicache {
namespace {

using namespace hicache::test;

TEST_F(StorageTest, PagesComeBackAsTheyWere) {
  for (const auto layout : all_layouts) {
    SCOPED_TRACE(to_string(layout));
    auto& rank = start({.layout = layout, .fingerprint = to_string(layout)});
    for (auto page = page_index{1}; page <= 10; ++page)
      rank.fill(page, static_cast<uint8_t>(page));
    EXPECT_TRUE(all_well(set(rank, batch(0, 10))));
    for (auto page = page_index{1}; page <= 10; ++page)
      rank.fill(page, 0);
    auto back = batch(2, 3);
    back.l2_pages = pages_of({15, 12, 7});
    back.l2_first = 0;
    EXPECT_TRUE(all_well(get(rank, back)));
    EXPECT_TRUE(rank.holds(15, 3));
    EXPECT_TRUE(rank.holds(12, 4));
    EXPECT_TRUE(rank.holds(7, 5));
    EXPECT_TRUE(rank.holds(14, 0));
  }
}

TEST_F(StorageTest, ExistsCountsLeadingPages) {
  auto& rank = start();
  set(rank, batch(0, 3));
  set(rank, batch(4, 2));
  EXPECT_EQ(exists(rank, batch(0, 10)), 3u);
  EXPECT_EQ(exists(rank, batch(4, 6)), 2u);
  EXPECT_EQ(exists(rank, batch(3, 7)), 0u);
  EXPECT_EQ(exists(rank, batch(0, 2)), 2u);
}

TEST_F(StorageTest, WritesTellWhenTheLastLostObjectWasUsed) {
  const auto bytes = storage_rank{rank_options{}}.geometry.page_bytes();
  auto& rank = start({}, make_memory_backend(3 * bytes, clock));
  const auto lost_after = [&](uint64_t first) {
    return ask_value<storage_outcome>(rank.actor, atom::set_v, batch(first, 2), plenty).lost;
  };
  clock.advance(std::chrono::seconds{1});
  const auto used = clock.now();
  EXPECT_EQ(lost_after(0), time_point{});
  clock.advance(std::chrono::seconds{1});
  EXPECT_EQ(lost_after(2), used);
  EXPECT_EQ(lost_after(2), used) << "nothing more is evicted";
}

TEST_F(StorageTest, MissesAreToldPerPage) {
  auto& rank = start();
  set(rank, batch(1, 1));
  EXPECT_EQ(get(rank, batch(0, 3)), (std::vector<ec>{ec::not_found, ec::none, ec::not_found}));
}

TEST_F(StorageTest, RemovedPagesAreGone) {
  auto& rank = start();
  set(rank, batch(0, 4));
  const auto removed = ask<storage_outcome>(rank.actor, atom::remove_v, batch(2, 1), plenty);
  ASSERT_TRUE(removed);
  EXPECT_TRUE(all_well(removed->pages));
  EXPECT_EQ(exists(rank, batch(0, 10)), 2u);
}

TEST_F(StorageTest, HeadsAndModelsDoNotShareObjects) {
  auto& first = start();
  auto& second = start({.number = 1});
  auto& other = start({.fingerprint = "model=n"});
  auto& same = start();
  first.fill(1, 7);
  set(first, batch(0, 1));
  EXPECT_EQ(exists(second, batch(0, 1)), 0u);
  EXPECT_EQ(exists(other, batch(0, 1)), 0u);
  EXPECT_EQ(exists(same, batch(0, 1)), 1u);
  EXPECT_TRUE(all_well(get(same, batch(0, 1))));
  EXPECT_TRUE(same.holds(1, 7));
}

TEST_F(StorageTest, ParentsAreNamedAsTheirObjects) {
  // A store that evicts leaves first must see the parent under the name it was stored by.
  class spy final : public blocking_store {
  public:
    explicit spy(std::vector<std::pair<page_key, page_key>>& seen) : seen_(seen) {}
    std::string name() const override { return "spy"; }
    std::vector<bool> exists(std::span<const page_key> keys, time_point) override {
      return std::vector<bool>(keys.size());
    }
    std::vector<result<void>> get(std::span<const page_read> pages, time_point) override {
      return std::vector<result<void>>(pages.size());
    }
    std::vector<result<void>> set(std::span<const page_write> pages, time_point) override {
      for (const auto& page : pages)
        seen_.emplace_back(page.parent, page.key);
      return std::vector<result<void>>(pages.size());
    }
    std::vector<result<void>> remove(std::span<const page_key> keys, time_point) override {
      return std::vector<result<void>>(keys.size());
    }
    backend_health health() override { return {}; }

  private:
    std::vector<std::pair<page_key, page_key>>& seen_;
  };
  auto seen = std::vector<std::pair<page_key, page_key>>{};
  auto& rank = start({.heads_per_object = 1}, std::make_unique<spy>(seen));
  auto x = batch(0, 3);
  x.names = names_of({key_of(1), key_of(2), key_of(3)});
  set(rank, x);
  ASSERT_EQ(seen.size(), 6u);
  for (const auto head : {0u, 1u}) {
    EXPECT_EQ(seen[head].first, page_key{});
    EXPECT_EQ(seen[2 + head].first, seen[head].second);
    EXPECT_EQ(seen[4 + head].first, seen[2 + head].second);
  }
  stop(rank.actor);
}

// -- head groups --------------------------------------------------------------

/// Eight heads on so many ranks.
pool_shape split_shape(uint32_t ranks) {
  auto split = shape;
  split.kv_heads = 8 / ranks;
  return split;
}

TEST_F(StorageTest, InstancesOfAnySizeReadWhatFourRanksStored) {
  for (const auto layout : all_layouts)
    for (const auto heads : {1u, 2u}) {
      const auto fingerprint
        = to_string(layout) + pool_geometry{split_shape(1), layout, 2}.object_fingerprint(heads);
      SCOPED_TRACE(fingerprint);
      const auto start_rank = [&](uint32_t number, uint32_t ranks) -> storage_rank& {
        return start({.layout = layout,
                      .number = number,
                      .heads_per_object = heads,
                      .fingerprint = fingerprint,
                      .shape = split_shape(ranks)});
      };
      for (auto number = 0u; number < 4; ++number) {
        auto& writer = start_rank(number, 4);
        for (auto page = page_index{1}; page <= 3; ++page)
          writer.fill_by_head(page, page);
        EXPECT_TRUE(all_well(set(writer, batch(0, 3))));
      }
      for (const auto ranks : {1u, 2u, 4u})
        for (auto number = 0u; number < ranks; ++number) {
          auto& reader = start_rank(number, ranks);
          EXPECT_EQ(exists(reader, batch(0, 10)), 3u);
          EXPECT_TRUE(all_well(get(reader, batch(0, 3))));
          for (auto page = page_index{1}; page <= 3; ++page)
            EXPECT_TRUE(reader.holds_by_head(page, page)) << number << " of " << ranks;
        }
    }
}

TEST_F(StorageTest, LayoutsWithTheSameObjectsReadEachOthersPages) {
  const auto start_rank = [&](host_layout layout) -> storage_rank& {
    return start({.layout = layout,
                  .heads_per_object = 1,
                  .fingerprint = pool_geometry{shape, layout, 2}.object_fingerprint(1)});
  };
  auto& writer = start_rank(host_layout::layer_first);
  writer.fill_by_head(1, 5);
  EXPECT_TRUE(all_well(set(writer, batch(0, 1))));
  for (const auto layout : {host_layout::page_first_direct, host_layout::page_head}) {
    auto& reader = start_rank(layout);
    EXPECT_TRUE(all_well(get(reader, batch(0, 1))));
    EXPECT_TRUE(reader.holds_by_head(1, 5)) << to_string(layout);
  }
  EXPECT_EQ(exists(start_rank(host_layout::page_first), batch(0, 1)), 0u);
}

TEST_F(StorageTest, APageIsThereIfAllItsHeadsAre) {
  auto& rank = start({.heads_per_object = 1});
  auto half = shape;
  half.kv_heads = 1;
  auto& second_head = start({.number = 1, .heads_per_object = 1, .shape = half});
  set(rank, batch(0, 4));
  EXPECT_EQ(store_.objects(), 8u);
  EXPECT_EQ(exists(rank, batch(0, 10)), 4u);
  ASSERT_TRUE(ask<storage_outcome>(second_head.actor, atom::remove_v, batch(2, 1), plenty));
  EXPECT_EQ(exists(rank, batch(0, 10)), 2u);
  EXPECT_EQ(exists(rank, batch(3, 7)), 1u);
  EXPECT_EQ(get(rank, batch(1, 3)), (std::vector<ec>{ec::none, ec::not_found, ec::none}));
  ASSERT_TRUE(ask<storage_outcome>(rank.actor, atom::remove_v, batch(0, 4), plenty));
  EXPECT_EQ(store_.objects(), 0u);
}

TEST_F(StorageTest, AnOutcomeIsThatOfTheFirstObjectThatFailed) {
  auto& rank = start({.heads_per_object = 1});
  const auto faults = std::map<page_key, ec>{
    {object_key(key_of(2), object_mask("model=m", "heads 0+1")), ec::io_failure},
    {object_key(key_of(2), object_mask("model=m", "heads 1+1")), ec::store_full},
    {object_key(key_of(4), object_mask("model=m", "heads 1+1")), ec::peer_unreachable},
  };
  const auto fault = [&](const page_key& object) {
    const auto found = faults.find(object);
    return found == faults.end() ? ec::none : found->second;
  };
  const auto expected = std::vector<ec>{ec::none, ec::io_failure, ec::none, ec::peer_unreachable};
  store_.fault_on_set = fault;
  EXPECT_EQ(set(rank, batch(0, 4)), expected);
  store_.fault_on_set = nullptr;
  set(rank, batch(0, 4));
  store_.fault_on_get = fault;
  EXPECT_EQ(get(rank, batch(0, 4)), expected);
}

// -- writers ------------------------------------------------------------------

TEST_F(StorageTest, RanksWithTheSameBytesWriteEachPageOnce) {
  const auto start_rank = [&](uint32_t number) -> storage_rank& {
    return start(
      {.number = number, .heads_per_object = 1, .shape = latent, .writers = {number, 2}});
  };
  auto& first = start_rank(0);
  auto& second = start_rank(1);
  for (auto page = page_index{1}; page <= 10; ++page) {
    first.fill(page, static_cast<uint8_t>(page));
    second.fill(page, static_cast<uint8_t>(page));
  }
  const auto written = [&](storage_rank& rank) {
    const auto before = store_.objects();
    const auto outcome = ask_value<storage_outcome>(rank.actor, atom::set_v, batch(0, 10), plenty);
    EXPECT_TRUE(all_well(outcome.pages));
    EXPECT_EQ(outcome.pages.size(), 10u);
    EXPECT_EQ(outcome.left_to_others + store_.objects() - before, 10u);
    return store_.objects() - before;
  };
  const auto keys = keys_of(1, 10);
  const auto mine
    = std::ranges::count_if(*keys, [](const auto& key) { return writer_of(key, 2) == 0; });
  ASSERT_GT(mine, 0);
  ASSERT_LT(mine, 10);
  EXPECT_EQ(written(first), static_cast<uint64_t>(mine));
  EXPECT_LT(exists(first, batch(0, 10)), 10u);
  EXPECT_EQ(written(second), 10u - static_cast<uint64_t>(mine));
  EXPECT_EQ(exists(first, batch(0, 10)), 10u);
  first.fill(5, 0);
  first.fill(6, 0);
  EXPECT_TRUE(all_well(get(first, batch(4, 2))));
  EXPECT_TRUE(first.holds(5, 5));
  EXPECT_TRUE(first.holds(6, 6));
}

TEST_F(StorageTest, ReplicasOfAHeadAreWrittenOnceAndServeEverySplit) {
  auto half = shape;
  half.kv_heads = 1;
  // Two heads on four ranks.
  for (auto rank = uint32_t{0}; rank < 4; ++rank) {
    auto& it
      = start({.number = rank / 2, .heads_per_object = 1, .shape = half, .writers = {rank % 2, 2}});
    for (auto page = page_index{1}; page <= 10; ++page)
      it.fill_by_head(page, page);
    const auto before = store_.objects();
    const auto outcome = ask_value<storage_outcome>(it.actor, atom::set_v, batch(0, 10), plenty);
    EXPECT_TRUE(all_well(outcome.pages));
    EXPECT_EQ(outcome.left_to_others + store_.objects() - before, 10u);
    EXPECT_EQ(exists(it, batch(0, 10)) == 10, rank % 2 == 1) << "after the last of its replicas";
  }
  EXPECT_EQ(store_.objects(), 20u) << "one for each head of each page";
  auto& whole = start({.heads_per_object = 1});
  EXPECT_TRUE(all_well(get(whole, batch(0, 10))));
  for (auto page = page_index{1}; page <= 10; ++page)
    EXPECT_TRUE(whole.holds_by_head(page, page)) << page;
}

TEST_F(StorageTest, PagesLeftToOthersCountUpToTheFirstThatFailed) {
  auto& rank = start({.heads_per_object = 1, .shape = latent, .writers = {0, 2}});
  auto keys = std::vector<page_key>{};
  for (auto i = uint64_t{1}; keys.size() < 6; ++i)
    if (writer_of(key_of(i), 2) == keys.size() % 2)
      keys.push_back(key_of(i));
  store_.fault_on_set = [&](const page_key& object) {
    return object == object_key(keys[2], object_mask("model=m", "latent")) ? ec::store_full
                                                                           : ec::none;
  };
  auto x = batch(0, 6);
  x.names = names_of(keys);
  const auto outcome = ask_value<storage_outcome>(rank.actor, atom::set_v, x, plenty);
  EXPECT_EQ(outcome.pages,
            (std::vector<ec>{ec::none, ec::none, ec::store_full, ec::none, ec::none, ec::none}));
  EXPECT_EQ(outcome.left_to_others, 1u);
}

// -- failures -----------------------------------------------------------------

TEST_F(StorageTest, PassedDeadlinesAreToldAsSuch) {
  auto& rank = start();
  set(rank, batch(0, 2));
  const auto late = caf::timespan{-1};
  EXPECT_EQ(get(rank, batch(0, 2), late), (std::vector<ec>(2, ec::deadline_exceeded)));
  EXPECT_EQ(set(rank, batch(2, 1), late), (std::vector<ec>{ec::deadline_exceeded}));
  EXPECT_EQ(exists(rank, batch(0, 2), late), 0u);
}

TEST_F(StorageTest, FailuresOfTheStoreComeThrough) {
  auto& rank = start();
  store_.fault_on_set = [](const page_key&) { return ec::store_full; };
  EXPECT_EQ(set(rank, batch(0, 1)), (std::vector<ec>{ec::store_full}));
  store_.fault_on_set = nullptr;
  set(rank, batch(0, 1));
  store_.fault_on_get = [](const page_key&) { return ec::corrupt_page; };
  EXPECT_EQ(get(rank, batch(0, 1)), (std::vector<ec>{ec::corrupt_page}));
}

// -- stores that do not return ------------------------------------------------

/// A store whose reads wait until the test lets them go.
class stuck_backend final : public blocking_store {
public:
  std::string name() const override { return "stuck"; }

  std::vector<bool> exists(std::span<const page_key> keys, time_point) override {
    wait();
    return std::vector<bool>(keys.size(), true);
  }

  std::vector<result<void>> get(std::span<const page_read> pages, time_point) override {
    wait();
    return std::vector<result<void>>(pages.size());
  }

  std::vector<result<void>> set(std::span<const page_write> pages, time_point) override {
    wait();
    return std::vector<result<void>>(pages.size());
  }

  std::vector<result<void>> remove(std::span<const page_key> keys, time_point) override {
    wait();
    return std::vector<result<void>>(keys.size());
  }

  backend_health health() override {
    wait();
    return {};
  }

  std::counting_semaphore<> entered{0};
  std::promise<void> released;

private:
  void wait() {
    entered.release();
    open_.wait();
  }

  std::shared_future<void> open_ = released.get_future().share();
};

class StuckStorageTest : public StorageTest {
protected:
  StuckStorageTest() {
    auto store = std::make_unique<stuck_backend>();
    store_ = store.get();
    queue_ = std::make_shared<storage_queue>(std::move(store), 1);
    auto& rank = ranks_.emplace_back(rank_options{});
    auto options = storage_options{objects_of(rank, {}), &clock};
    options.notice = [this](const error& why) { notices_.push_back(why); };
    rank.actor = spawn(storage, options, queue_);
    actor_ = rank.actor;
  }

  ~StuckStorageTest() override {
    stop_all();
    release();
  }

  /// Lets all calls return, and brings their outcomes to the actor's mailbox.
  void release() {
    if (!std::exchange(is_released_, true)) {
      store_->released.set_value();
      EXPECT_TRUE(queue_->close(std::chrono::hours{1}));
    }
    run();
  }

  storage_status status() { return ask_value<storage_status>(actor_, atom::status_v); }

  template <class Verb>
  test::reply<storage_outcome> send_batch(Verb verb, uint64_t pages) {
    auto answer = send_request<storage_outcome>(actor_, verb, batch(0, pages), plenty);
    run();
    return answer;
  }

  stuck_backend* store_ = nullptr;
  std::shared_ptr<storage_queue> queue_;
  storage_actor actor_;
  std::vector<error> notices_;
  bool is_released_ = false;
};

TEST_F(StuckStorageTest, ACallIsAnsweredAtItsDeadlineAndKeepsItsPages) {
  const auto read = send_batch(atom::get_v, 3);
  store_->entered.acquire();
  const auto waiting = send_batch(atom::set_v, 2);
  advance(plenty - std::chrono::milliseconds{1});
  EXPECT_FALSE(read.arrived());
  advance(std::chrono::milliseconds{1});
  ASSERT_TRUE(read.arrived());
  EXPECT_EQ(read.get()->pages, (std::vector<ec>(3, ec::deadline_exceeded)));
  ASSERT_NE(read.get()->ticket, 0u);
  // One that the store has not seen keeps nothing.
  ASSERT_TRUE(waiting.arrived());
  EXPECT_EQ(waiting.get()->pages, (std::vector<ec>(2, ec::deadline_exceeded)));
  EXPECT_EQ(waiting.get()->ticket, 0u);
  EXPECT_EQ(status().stuck_calls, 1u);
  EXPECT_EQ(status().quarantined_pages, 3u);
  const auto drained = send_request<atom::ok>(actor_, atom::drain_v, read.get()->ticket);
  run();
  EXPECT_FALSE(drained.arrived());
  release();
  EXPECT_TRUE(drained.arrived());
  EXPECT_EQ(status().stuck_calls, 0u);
  EXPECT_EQ(status().quarantined_pages, 0u);
  EXPECT_TRUE(ask<atom::ok>(actor_, atom::drain_v, read.get()->ticket)); // It was known already.
}

TEST_F(StuckStorageTest, StuckReadsAreLeftOutWithOneNoticeAndWritesAreTried) {
  auto reads = std::vector<test::reply<storage_outcome>>{};
  for (auto i = 0u; i < breaker_policy{}.failures; ++i) {
    reads.push_back(send_batch(atom::get_v, 1));
    store_->entered.acquire(); // On a thread of its own.
    advance(plenty);
  }
  EXPECT_EQ(status().reads.state, "open");
  EXPECT_EQ(status().reads.cause, "late");
  EXPECT_EQ(status().writes.state, "closed");
  EXPECT_FALSE(status().is_up());
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_EQ(notices_[0].code, ec::store_unavailable);
  // At once, and the store does not see it.
  EXPECT_EQ(send_batch(atom::get_v, 4).get()->pages, (std::vector<ec>(4, ec::store_unavailable)));
  const auto count = ask<storage_hit>(actor_, atom::exists_v, batch(0, 4), plenty);
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().code, ec::store_unavailable);
  EXPECT_FALSE(store_->entered.try_acquire());
  EXPECT_FALSE(send_batch(atom::set_v, 1).arrived());
  store_->entered.acquire();
  release();
  EXPECT_EQ(notices_.size(), 1u);
}

TEST_F(StuckStorageTest, AStoreThatDoesNotSayHowItIsIsAsItWas) {
  const auto health = send_request<storage_health_ptr>(actor_, atom::health_v, plenty);
  run();
  store_->entered.acquire();
  EXPECT_FALSE(health.arrived());
  advance(plenty);
  ASSERT_TRUE(health.arrived());
  EXPECT_EQ((*health.get())->objects, 0u);
  const auto again = send_request<storage_health_ptr>(actor_, atom::health_v, plenty);
  run();
  advance(plenty);
  EXPECT_TRUE(again.arrived());
  EXPECT_FALSE(store_->entered.try_acquire()); // It is asked once.
  release();
}

TEST_F(StorageTest, AStoreThatFailsIsTriedWithOnePageAfterAWhile) {
  auto& rank = start();
  set(rank, batch(0, 5));
  auto calls = 0;
  auto code = ec::io_failure;
  store_.fault_on_get = [&](const page_key&) {
    ++calls;
    return code;
  };
  for (auto i = 0u; i < breaker_policy{}.failures; ++i)
    EXPECT_EQ(get(rank, batch(0, 1)), (std::vector<ec>{ec::io_failure}));
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(get(rank, batch(0, 5)), (std::vector<ec>(5, ec::store_unavailable)));
  EXPECT_EQ(calls, 3);
  advance(breaker_policy{}.pause_min);
  EXPECT_EQ(get(rank, batch(0, 2)), (std::vector<ec>{ec::io_failure, ec::store_unavailable}));
  code = ec::none;
  EXPECT_EQ(get(rank, batch(0, 2)), (std::vector<ec>(2, ec::store_unavailable)));
  advance(2 * breaker_policy{}.pause_min);
  EXPECT_EQ(get(rank, batch(0, 2)), (std::vector<ec>{ec::none, ec::store_unavailable}));
  EXPECT_TRUE(all_well(get(rank, batch(0, 5))));
}

TEST_F(StorageTest, CallsStopAsItsPolicySays) {
  breaker_
    = {.failures = 1, .pause_min = std::chrono::minutes{2}, .pause_max = std::chrono::minutes{2}};
  auto& rank = start();
  set(rank, batch(0, 1));
  store_.fault_on_get = [](const page_key&) { return ec::io_failure; };
  EXPECT_EQ(get(rank, batch(0, 1)), (std::vector<ec>{ec::io_failure}));
  advance(std::chrono::seconds{119});
  EXPECT_EQ(get(rank, batch(0, 1)), (std::vector<ec>{ec::store_unavailable}));
  advance(std::chrono::seconds{1});
  EXPECT_EQ(get(rank, batch(0, 1)), (std::vector<ec>{ec::io_failure}));
  store_.fault_on_set = [](const page_key&) { return ec::io_failure; };
  EXPECT_EQ(set(rank, batch(0, 1)), (std::vector<ec>{ec::io_failure}));
  EXPECT_EQ(set(rank, batch(0, 1)), (std::vector<ec>{ec::store_unavailable}));
}

TEST_F(StorageTest, RequestsUnderWayAtOnceGetTheirOwnAnswers) {
  auto& rank = start();
  set(rank, batch(0, 1));
  const auto a = send_request<storage_hit>(rank.actor, atom::exists_v, batch(0, 5), plenty);
  const auto b = send_request<storage_outcome>(rank.actor, atom::get_v, batch(1, 2), plenty);
  const auto c = send_request<storage_outcome>(rank.actor, atom::get_v, batch(0, 1), plenty);
  run();
  EXPECT_EQ(a.get()->pages, 1u);
  EXPECT_EQ(b.get()->pages, (std::vector<ec>(2, ec::not_found)));
  EXPECT_EQ(c.get()->pages, (std::vector<ec>{ec::none}));
}

} // namespace
} // namespace hicache
