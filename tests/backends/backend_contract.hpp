#pragma once

#include "backends/storage_queue.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/waiting_store.hpp"
#include "tests/support/manual_clock.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <thread>

/// What every store must do. A test program includes this file once and instantiates
/// BackendContractTest with factories.
namespace hicache::test {

/// A store and whatever it needs to run, which outlives it.
struct opened_backend {
  std::shared_ptr<void> surroundings;
  std::unique_ptr<storage_backend> store;
};

/// A store whose calls block, with threads of its own.
inline std::unique_ptr<storage_backend> queued(std::unique_ptr<blocking_store> store,
                                               size_t threads = 2) {
  return std::make_unique<storage_queue>(std::move(store), threads);
}

/// How much a store must hold: exactly `pages` pages of `page_bytes` bytes, no more.
struct room {
  size_t pages = 0;
  size_t page_bytes = 0;
};

struct backend_factory {
  std::string name;
  std::function<opened_backend(const clock_source&, room)> open;
};

class BackendContractTest : public testing::TestWithParam<backend_factory> {
protected:
  waiting_store& open(room size) {
    auto opened = GetParam().open(clock_, size);
    surroundings_ = std::move(opened.surroundings);
    return store_.emplace(std::move(opened.store));
  }

  /// Room enough for what the test does.
  waiting_store& open() { return open({64, 4096}); }

  manual_clock clock_;
  std::shared_ptr<void> surroundings_;
  std::optional<waiting_store> store_;
};

/// Heads of a page are thousands of short parts; layers of it are a few long ones.
TEST_P(BackendContractTest, GivesBackPagesInManyShortOrFewLongParts) {
  constexpr auto size = size_t{256} << 10;
  auto& store = open({8, size});
  const auto lengths = std::vector<std::vector<size_t>>{
    std::vector<size_t>(3000, 64), {100000, 0, 5000, 70000}, {}, std::vector<size_t>(60, 4096)};
  for (auto i = size_t{0}; i < lengths.size(); ++i) {
    const auto bytes = bytes_of(i, size);
    const auto writes = std::vector{page_write{key_of(i), {}, cut(bytes, lengths[i])}};
    ASSERT_TRUE(store.set(writes, no_deadline)[0]);
    for (const auto& parts : lengths) {
      auto back = page_bytes(size);
      const auto reads = std::vector{page_read{key_of(i), cut(back, parts)}};
      ASSERT_TRUE(store.get(reads, no_deadline)[0]);
      EXPECT_EQ(back, bytes) << "page " << i << ", " << parts.size() + 1 << " parts";
    }
  }
}

TEST_P(BackendContractTest, GivesBackPagesWhateverTheirParts) {
  auto& store = open();
  const auto writes = std::vector<std::vector<size_t>>{{}, {1}, {100, 0, 900}, {1023, 1}};
  const auto reads = std::vector<std::vector<size_t>>{{512, 511}, {}, {1}, {0, 7, 7, 7}};
  for (auto i = size_t{0}; i < writes.size(); ++i) {
    const auto key = key_of(i);
    const auto bytes = bytes_of(i, 1024);
    ASSERT_TRUE(store.set(std::vector{page_write{key, {}, cut(bytes, writes[i])}}, no_deadline)[0]);
    auto back = page_bytes(1024);
    ASSERT_TRUE(store.get(std::vector{page_read{key, cut(back, reads[i])}}, no_deadline)[0]);
    EXPECT_EQ(back, bytes) << "page " << i;
  }
}

TEST_P(BackendContractTest, AnswersABatchPageByPage) {
  auto& store = open();
  const auto contents = std::vector{bytes_of(0, 64), bytes_of(1, 128), bytes_of(3, 64)};
  const auto answers = store.set(std::vector{page_write{key_of(0), {}, {contents[0]}},
                                             page_write{key_of(1), key_of(0), {contents[1]}},
                                             page_write{key_of(3), {}, {contents[2]}}},
                                 no_deadline);
  EXPECT_EQ(errors_of(answers), std::vector<error>(3));
  EXPECT_EQ(store.exists(std::vector{key_of(0), key_of(1), key_of(2), key_of(3)}, no_deadline),
            (std::vector{true, true, false, true}));

  auto back = std::vector{page_bytes(64), page_bytes(64), page_bytes(128), page_bytes(64)};
  const auto read
    = store.get(std::vector{page_read{key_of(3), {back[0]}}, page_read{key_of(2), {back[1]}},
                            page_read{key_of(1), {back[2]}}, page_read{key_of(0), {back[3]}}},
                no_deadline);
  ASSERT_EQ(read.size(), 4u);
  EXPECT_TRUE(read[0]);
  EXPECT_EQ(code_of(read[1]), ec::not_found);
  EXPECT_TRUE(read[2]);
  EXPECT_TRUE(read[3]);
  EXPECT_EQ(back[0], contents[2]);
  EXPECT_EQ(back[2], contents[1]);
  EXPECT_EQ(back[3], contents[0]);
}

TEST_P(BackendContractTest, TakesEmptyBatches) {
  auto& store = open();
  EXPECT_TRUE(store.exists({}, no_deadline).empty());
  EXPECT_TRUE(store.get({}, no_deadline).empty());
  EXPECT_TRUE(store.set({}, no_deadline).empty());
  EXPECT_TRUE(store.remove({}, no_deadline).empty());
}

TEST_P(BackendContractTest, SettingAnExistingKeySucceedsAndMovesNothing) {
  auto& store = open();
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 256)));
  EXPECT_TRUE(put(store, key_of(1), bytes_of(2, 256)));
  EXPECT_EQ(take(store, key_of(1), 256), bytes_of(1, 256));
  EXPECT_EQ(store.health().objects, 1u);
}

TEST_P(BackendContractTest, ARemovedPageIsGoneAndMayComeBack) {
  auto& store = open();
  EXPECT_TRUE(drop(store, key_of(1)));
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 256)));
  EXPECT_TRUE(drop(store, key_of(1)));
  EXPECT_FALSE(has(store, key_of(1)));
  EXPECT_EQ(code_of(take(store, key_of(1), 256)), ec::not_found);
  EXPECT_EQ(store.health().objects, 0u);
  EXPECT_EQ(store.health().bytes, 0u);
  ASSERT_TRUE(put(store, key_of(1), bytes_of(2, 256)));
  EXPECT_EQ(take(store, key_of(1), 256), bytes_of(2, 256));
}

TEST_P(BackendContractTest, MakesRoomByDroppingThePageSetFirst) {
  auto& store = open({3, 100});
  for (const auto number : {1u, 2u, 3u, 4u})
    EXPECT_TRUE(put(store, key_of(number), bytes_of(number, 100)));
  EXPECT_EQ(store.exists(std::vector{key_of(1), key_of(2), key_of(3), key_of(4)}, no_deadline),
            (std::vector{false, true, true, true}));
  EXPECT_EQ(store.health().objects, 3u);
  EXPECT_EQ(store.health().counters.evicted, 1u);
  EXPECT_LE(store.health().bytes, store.health().capacity_bytes);
}

TEST_P(BackendContractTest, AReadPageIsNotTheOldestAnyMore) {
  auto& store = open({3, 100});
  for (const auto number : {1u, 2u, 3u})
    ASSERT_TRUE(put(store, key_of(number), bytes_of(number, 100)));
  ASSERT_TRUE(take(store, key_of(1), 100));
  ASSERT_TRUE(put(store, key_of(4), bytes_of(4, 100)));
  EXPECT_EQ(store.exists(std::vector{key_of(1), key_of(2), key_of(3), key_of(4)}, no_deadline),
            (std::vector{true, false, true, true}));
}

TEST_P(BackendContractTest, APageSetAgainIsNotTheOldestAnyMore) {
  auto& store = open({3, 100});
  for (const auto number : {1u, 2u, 3u, 1u, 4u})
    ASSERT_TRUE(put(store, key_of(number), bytes_of(number, 100)));
  EXPECT_EQ(store.exists(std::vector{key_of(1), key_of(2), key_of(3), key_of(4)}, no_deadline),
            (std::vector{true, false, true, true}));
}

TEST_P(BackendContractTest, RefusesAPageThatNeverFitsAndKeepsTheOthers) {
  auto& store = open({1, 100});
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 100)));
  EXPECT_EQ(code_of(put(store, key_of(2), bytes_of(2, 2000))), ec::store_full);
  EXPECT_FALSE(has(store, key_of(2)));
  EXPECT_EQ(take(store, key_of(1), 100), bytes_of(1, 100));
}

TEST_P(BackendContractTest, APassedDeadlineFailsEveryPageAndChangesNothing) {
  auto& store = open();
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 64)));
  const auto past = clock_.now();
  clock_.advance(std::chrono::seconds{1});
  auto buffer = page_bytes(64);
  const auto fresh = bytes_of(2, 64);
  EXPECT_EQ(store.exists(std::vector{key_of(1), key_of(2)}, past), (std::vector{false, false}));
  EXPECT_EQ(code_of(store.get(std::vector{page_read{key_of(1), {buffer}}}, past)[0]),
            ec::deadline_exceeded);
  EXPECT_EQ(code_of(store.set(std::vector{page_write{key_of(2), {}, {fresh}}}, past)[0]),
            ec::deadline_exceeded);
  EXPECT_EQ(code_of(store.remove(std::vector{key_of(1)}, past)[0]), ec::deadline_exceeded);
  EXPECT_EQ(take(store, key_of(1), 64), bytes_of(1, 64));
  EXPECT_FALSE(has(store, key_of(2)));
}

TEST_P(BackendContractTest, RefusesPartsOfAnotherLengthThanThePage) {
  auto& store = open();
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 100)));
  for (const auto count : {0u, 99u, 101u}) {
    const auto code = code_of(take(store, key_of(1), count));
    EXPECT_TRUE(code == ec::invalid_argument || code == ec::corrupt_page) << to_string(code);
  }
}

TEST_P(BackendContractTest, CountsHitsAndMisses) {
  auto& store = open();
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 100)));
  for (const auto number : {1u, 2u, 1u, 3u, 1u})
    static_cast<void>(take(store, key_of(number), 100));
  const auto health = store.health();
  EXPECT_TRUE(health.ok) << health.detail;
  EXPECT_EQ(health.counters, (backend_counters{.hits = 3, .misses = 2}));
  EXPECT_EQ(health.objects, 1u);
  EXPECT_GE(health.bytes, 100u);
  EXPECT_FALSE(store.name().empty());
}

TEST_P(BackendContractTest, ServesManyThreadsWithoutEverMixingPages) {
  constexpr auto threads = 4;
  constexpr auto rounds = 300;
  constexpr auto keys = 16;
  // Half of the pages fit, so that pages are dropped while others read them.
  auto& store = open({keys / 2, 512});
  auto wrong = std::atomic<int>{0};
  auto start = std::latch{threads};
  auto workers = std::vector<std::jthread>{};
  for (auto seed = 0; seed < threads; ++seed)
    workers.emplace_back([&, seed] {
      auto random = std::mt19937_64{static_cast<uint64_t>(seed)};
      start.arrive_and_wait();
      for (auto round = 0; round < rounds; ++round) {
        const auto number = random() % keys;
        const auto action = random() % 8;
        if (action == 0)
          wrong += !drop(store, key_of(number));
        else if (action < 4)
          wrong += code_of(put(store, key_of(number), bytes_of(number, 512))) == ec::io_failure;
        else if (const auto bytes = take(store, key_of(number), 512); bytes)
          wrong += *bytes != bytes_of(number, 512);
        else
          wrong += bytes.error().code != ec::not_found;
      }
    });
  workers.clear();
  EXPECT_EQ(wrong, 0);
  const auto health = store.health();
  EXPECT_LE(health.bytes, health.capacity_bytes);
  EXPECT_EQ(health.counters.corrupt, 0u);
}

// -- the asynchronous side ----------------------------------------------------

TEST_P(BackendContractTest, AReadMayTakeThePlacesOfALookUp) {
  auto& store = open();
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 100)));
  ASSERT_TRUE(put(store, key_of(2), bytes_of(2, 100)));
  const auto places = store.lookup(std::vector{key_of(1), key_of(2), key_of(3)}, no_deadline);
  ASSERT_EQ(places.size(), 3u);
  ASSERT_TRUE(places[0]);
  ASSERT_TRUE(places[1]);
  EXPECT_EQ(code_of(places[2]), ec::not_found);
  ASSERT_TRUE(drop(store, key_of(2))); // Its place says what was true then.
  auto back = std::vector{page_bytes(100), page_bytes(100)};
  const auto read = store.get(std::vector{page_read{key_of(1), {back[0]}, *places[0]},
                                          page_read{key_of(2), {back[1]}, *places[1]}},
                              no_deadline);
  EXPECT_TRUE(read[0]);
  EXPECT_EQ(back[0], bytes_of(1, 100));
  EXPECT_EQ(code_of(read[1]), ec::not_found);
}

TEST_P(BackendContractTest, EveryBatchIsAnsweredOnceAlsoIfTheStoreCloses) {
  constexpr auto batches = size_t{64};
  auto& store = open();
  auto& backend = store.backend();
  const auto bytes = bytes_of(1, 100);
  auto answers = std::vector<std::atomic<int>>(4 * batches);
  auto back = std::vector<page_bytes>(batches, page_bytes(100));
  const auto count = [&](size_t i) { return [&answers, i](const auto&) { ++answers[i]; }; };
  for (auto i = size_t{0}; i < batches; ++i) {
    backend.write(std::vector{page_write{key_of(i), {}, {bytes}}}, no_deadline, count(4 * i));
    backend.lookup(std::vector{key_of(i)}, no_deadline, count(4 * i + 1));
    backend.read(std::vector{page_read{key_of(i), {back[i]}}}, no_deadline, count(4 * i + 2), {});
    backend.remove(std::vector{key_of(i)}, no_deadline, count(4 * i + 3));
  }
  EXPECT_TRUE(backend.close(std::chrono::hours{1}));
  for (const auto& each : answers)
    EXPECT_EQ(each, 1);
  EXPECT_EQ(code_of(put(store, key_of(1), bytes)), ec::stopping);
}

TEST_P(BackendContractTest, ABatchThatIsAnsweredHasNotExpired) {
  auto& store = open();
  auto answered = std::promise<void>{};
  const auto number = store.backend().lookup(std::vector{key_of(1)}, no_deadline,
                                             [&](const auto&) { answered.set_value(); });
  answered.get_future().wait();
  EXPECT_NE(number, 0u);
  EXPECT_NE(store.backend().expire(number), storage_backend::expiry::withdrawn);
}

TEST_P(BackendContractTest, TakesMemoryToRegister) {
  auto& store = open();
  auto memory = page_bytes(4096);
  EXPECT_TRUE(store.backend().attach_memory(std::array{std::span{memory}}));
  EXPECT_TRUE(store.capabilities().tells_occupancy);
  EXPECT_EQ(store.capabilities(), store.backend().capabilities());
}

} // namespace hicache::test
