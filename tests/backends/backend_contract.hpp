#pragma once

#include "backends/storage_queue.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/faulty_store.hpp"
#include "tests/backends/random_batches.hpp"
#include "tests/backends/waiting_store.hpp"
#include "tests/support/manual_clock.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <semaphore>
#include <thread>
#include <vector>

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
  /// Whether the store can list its objects.
  bool lists = false;
  /// Whether the store can remove objects. One that cannot has no bound, and tells no occupancy.
  bool removes = true;
  /// What the machine lacks for this store, whose tests are skipped then; empty if nothing.
  std::string lacking = {};
};

class BackendContractTest : public testing::TestWithParam<backend_factory> {
protected:
  void SetUp() override {
    if (!GetParam().lacking.empty())
      GTEST_SKIP() << GetParam().lacking;
  }

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
  EXPECT_EQ(store.health().objects, GetParam().removes ? 1u : 0u);
}

TEST_P(BackendContractTest, ListsItsObjects) {
  auto& store = open();
  if (!GetParam().lists) {
    EXPECT_EQ(code_of(store.list("", no_deadline)), ec::unsupported);
    return;
  }
  auto written = std::map<page_key, uint64_t>{};
  for (auto i = size_t{0}; i < 30; ++i) {
    ASSERT_TRUE(put(store, key_of(i), bytes_of(i, 100 + i)));
    written.emplace(key_of(i), 100 + i);
  }
  ASSERT_TRUE(drop(store, key_of(7)));
  written.erase(key_of(7));
  auto listed = std::map<page_key, uint64_t>{};
  auto from = std::string{};
  do {
    const auto part = store.list(from, no_deadline);
    ASSERT_TRUE(part) << part.error().detail;
    for (const auto& x : part->objects)
      listed.emplace(x.key, x.bytes);
    from = part->next;
  } while (!from.empty());
  EXPECT_EQ(listed, written);
}

TEST_P(BackendContractTest, ListsTheNamespaceOfEachObjectIfItKeepsIt) {
  auto& store = open();
  if (!store.capabilities().keeps_namespaces)
    return;
  const auto bytes = bytes_of(1, 100);
  auto written = std::map<page_key, uint64_t>{{key_of(1), 7}, {key_of(2), 8}};
  for (const auto& [key, fingerprint] : written)
    ASSERT_TRUE(
      store.set(std::vector{page_write{key, {}, {bytes}, 0, fingerprint}}, no_deadline)[0]);
  auto listed = std::map<page_key, uint64_t>{};
  auto from = std::string{};
  do {
    const auto part = store.list(from, no_deadline);
    ASSERT_TRUE(part) << part.error().detail;
    for (const auto& object : part->objects)
      listed.emplace(object.key, object.fingerprint);
    from = part->next;
  } while (!from.empty());
  EXPECT_EQ(listed, written);
  for (const auto& [key, fingerprint] : written)
    EXPECT_EQ(take(store, key, 100), bytes);
}

TEST_P(BackendContractTest, ARemovedPageIsGoneAndMayComeBack) {
  auto& store = open();
  if (!GetParam().removes) {
    EXPECT_EQ(code_of(drop(store, key_of(1))), ec::unsupported);
    return;
  }
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
  if (!GetParam().removes)
    return;
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
  if (!GetParam().removes)
    return;
  auto& store = open({3, 100});
  for (const auto number : {1u, 2u, 3u})
    ASSERT_TRUE(put(store, key_of(number), bytes_of(number, 100)));
  ASSERT_TRUE(take(store, key_of(1), 100));
  ASSERT_TRUE(put(store, key_of(4), bytes_of(4, 100)));
  EXPECT_EQ(store.exists(std::vector{key_of(1), key_of(2), key_of(3), key_of(4)}, no_deadline),
            (std::vector{true, false, true, true}));
}

TEST_P(BackendContractTest, APageSetAgainIsNotTheOldestAnyMore) {
  if (!GetParam().removes)
    return;
  auto& store = open({3, 100});
  for (const auto number : {1u, 2u, 3u, 1u, 4u})
    ASSERT_TRUE(put(store, key_of(number), bytes_of(number, 100)));
  EXPECT_EQ(store.exists(std::vector{key_of(1), key_of(2), key_of(3), key_of(4)}, no_deadline),
            (std::vector{true, false, true, true}));
}

TEST_P(BackendContractTest, TellsWhenWhatItEvictsWasLastUsedIfItCan) {
  auto& store = open({3, 100});
  auto losses = std::vector<time_point>{};
  // A store may count the uses of one moment on.
  const auto watch = [&](time_point used) {
    losses.push_back(std::chrono::floor<std::chrono::milliseconds>(used));
  };
  if (!store.watch_losses(watch))
    return;
  auto uses = std::vector<time_point>{};
  const auto use = [&](auto call) {
    clock_.advance(std::chrono::seconds{1});
    uses.push_back(clock_.now());
    ASSERT_TRUE(call());
  };
  const auto put_page
    = [&](uint64_t number) { return put(store, key_of(number), bytes_of(number, 100)); };
  for (const auto number : {1u, 2u, 3u})
    use([&] { return put_page(number); });
  use([&] { return take(store, key_of(1), 100); });
  EXPECT_TRUE(losses.empty());
  use([&] { return put_page(4); }); // Evicts page 2.
  EXPECT_EQ(losses, (std::vector{uses[1]}));
  use([&] { return put_page(3); });
  use([&] { return put_page(5); }); // Evicts page 1.
  EXPECT_EQ(losses, (std::vector{uses[1], uses[3]}));
}

TEST_P(BackendContractTest, RefusesAPageThatNeverFitsAndKeepsTheOthers) {
  if (!GetParam().removes)
    return;
  auto& store = open({1, 4096});
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 4096)));
  EXPECT_EQ(code_of(put(store, key_of(2), bytes_of(2, 20000))), ec::store_full);
  EXPECT_FALSE(has(store, key_of(2)));
  EXPECT_EQ(take(store, key_of(1), 4096), bytes_of(1, 4096));
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
  if (GetParam().removes) {
    EXPECT_EQ(health.objects, 1u);
    EXPECT_GE(health.bytes, 100u);
  }
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
          wrong += drop(store, key_of(number)).has_value() != GetParam().removes;
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
  const auto is_gone = drop(store, key_of(2)).has_value();
  EXPECT_EQ(is_gone, GetParam().removes);
  // The second place says what was true then.
  auto back = std::vector{page_bytes(100), page_bytes(100)};
  const auto read = store.get(std::vector{page_read{key_of(1), {back[0]}, *places[0]},
                                          page_read{key_of(2), {back[1]}, *places[1]}},
                              no_deadline);
  EXPECT_TRUE(read[0]);
  EXPECT_EQ(back[0], bytes_of(1, 100));
  EXPECT_TRUE(!is_gone || code_of(read[1]) == ec::not_found);
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
  EXPECT_EQ(code_of(take(store, key_of(1), 100)), ec::stopping);
  EXPECT_EQ(code_of(drop(store, key_of(1))), ec::stopping);
  EXPECT_EQ(code_of(store.lookup(std::vector{key_of(1)}, no_deadline)[0]), ec::stopping);
  EXPECT_FALSE(store.health().ok);
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

TEST_P(BackendContractTest, AnExpiredBatchIsEitherWithdrawnOrAnsweredOnce) {
  constexpr auto batches = size_t{64};
  auto& store = open();
  const auto bytes = bytes_of(1, 100);
  auto answers = std::vector<std::atomic<int>>(batches);
  auto is_stored = std::vector<std::atomic<bool>>(batches);
  auto answered = std::counting_semaphore<>{0};
  auto numbers = std::vector<storage_backend::batch_number>{};
  auto withdrawn = std::vector<bool>{};
  for (auto i = size_t{0}; i < batches; ++i) {
    numbers.push_back(store.backend().write(std::vector{page_write{key_of(i), {}, {bytes}}},
                                            no_deadline, [&, i](const auto& outcomes) {
                                              ++answers[i];
                                              is_stored[i] = outcomes[0].has_value();
                                              answered.release();
                                            }));
    withdrawn.push_back(store.backend().expire(numbers[i]) == storage_backend::expiry::withdrawn);
  }
  for (const auto is_withdrawn : withdrawn)
    if (!is_withdrawn)
      answered.acquire();
  for (auto i = size_t{0}; i < batches; ++i) {
    EXPECT_EQ(answers[i], withdrawn[i] ? 0 : 1) << i;
    EXPECT_EQ(has(store, key_of(i)), is_stored[i]) << i;
    EXPECT_NE(store.backend().expire(numbers[i]), storage_backend::expiry::withdrawn);
  }
}

TEST_P(BackendContractTest, ADeadlineThatPassesBeforeTheStoreGetsToABatchChangesNothing) {
  auto& store = open();
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, 64)));
  const auto fresh = bytes_of(2, 64);
  auto back = page_bytes(64);
  // The store asks for the list when it gets to the batch.
  const auto passing = [this]<class T>(T item) {
    return store_batch<T>{1, [this, item] {
                            clock_.advance(std::chrono::milliseconds{2});
                            return std::vector{item};
                          }};
  };
  const auto deadline = [this] { return clock_.now() + std::chrono::milliseconds{1}; };
  auto& backend = store.backend();
  using outcomes = std::vector<result<void>>;
  EXPECT_FALSE(waiting_store::wait<std::vector<result<store_place>>>([&](auto done) {
                 backend.lookup(passing(key_of(1)), deadline(), done);
               }).at(0));
  const auto codes = std::vector{
    code_of(waiting_store::wait<outcomes>([&](auto done) {
              backend.read(passing(page_read{key_of(1), {back}}), deadline(), done, {});
            }).at(0)),
    code_of(waiting_store::wait<outcomes>([&](auto done) {
              backend.write(passing(page_write{key_of(2), {}, {fresh}}), deadline(), done);
            }).at(0)),
    code_of(waiting_store::wait<outcomes>([&](auto done) {
              backend.remove(passing(key_of(1)), deadline(), done);
            }).at(0))};
  EXPECT_EQ(codes, std::vector(3, ec::deadline_exceeded));
  EXPECT_EQ(take(store, key_of(1), 64), bytes_of(1, 64));
  EXPECT_FALSE(has(store, key_of(2)));
}

TEST_P(BackendContractTest, AReadMayReportItsPagesBeforeItsAnswerWhichRepeatsThem) {
  constexpr auto pages = size_t{100};
  auto& store = open({pages, 64});
  auto back = std::vector<page_bytes>(pages, page_bytes(64));
  auto reads = std::vector<page_read>{};
  for (auto i = size_t{0}; i < pages; ++i) {
    if (i % 3 != 0) {
      ASSERT_TRUE(put(store, key_of(i), bytes_of(i, 64)));
    }
    reads.push_back({key_of(i), {back[i]}});
  }
  auto reported = std::map<size_t, ec>{};
  const auto answers = waiting_store::wait<std::vector<result<void>>>([&](auto done) {
    store.backend().read(reads, no_deadline, done,
                         [&](size_t first, std::span<const result<void>> outcomes) {
                           for (auto i = first; i < first + outcomes.size(); ++i) {
                             const auto code = code_of(outcomes[i - first]);
                             EXPECT_TRUE(reported.emplace(i, code).second) << i;
                             EXPECT_TRUE(code != ec::none || back[i] == bytes_of(i, 64)) << i;
                           }
                         });
  });
  ASSERT_EQ(answers.size(), pages);
  for (auto i = size_t{0}; i < pages; ++i) {
    EXPECT_EQ(code_of(answers[i]), i % 3 != 0 ? ec::none : ec::not_found) << i;
    EXPECT_TRUE(!answers[i] || back[i] == bytes_of(i, 64)) << i;
  }
  for (const auto& [page, code] : reported)
    EXPECT_EQ(code, code_of(answers.at(page))) << page;
}

TEST_P(BackendContractTest, BehindFaultsEveryBatchIsAnsweredOnceAndNoReadIsWrong) {
  for (const auto seed : {1u, 2u, 3u}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto opened = GetParam().open(clock_, {random_batches::keys / 2, 256});
    auto owned
      = std::make_unique<faulty_store>(std::move(opened.store), faults_by_chance(seed, 0.5));
    auto& faulty = *owned;
    auto batches = random_batches{faulty, seed};
    auto store = waiting_store{std::move(owned)};
    for (auto round = 0; round < 200; ++round) {
      batches.submit();
      if (round % 4 == 0)
        faulty.release_one(store_fault::late);
    }
    faulty.set_faults({});
    faulty.release();
    batches.wait();
    clock_.advance(std::chrono::hours{1}); // A tier that was left out is tried again.
    const auto fresh = bytes_of(100, 256);
    EXPECT_TRUE(put(store, key_of(100), fresh));
    EXPECT_EQ(take(store, key_of(100), 256), fresh);
    EXPECT_TRUE(faulty.close(std::chrono::hours{1}));
    batches.expect_one_answer_each_and_right_bytes();
  }
}

TEST_P(BackendContractTest, TakesMemoryToRegister) {
  auto& store = open();
  auto memory = page_bytes(4096);
  EXPECT_TRUE(store.backend().attach_memory(std::array{std::span{memory}}));
  EXPECT_EQ(store.capabilities().tells_occupancy, GetParam().removes);
  EXPECT_EQ(store.capabilities(), store.backend().capabilities());
}

} // namespace hicache::test
