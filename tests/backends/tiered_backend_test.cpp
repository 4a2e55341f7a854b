#include "backends/file_backend.hpp"
#include "backends/storage_queue.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/backends/tiered_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

class TieredBackendTest : public tiered_test {};

TEST_F(TieredBackendTest, AnOrderThatStoresNothingIsRefused) {
  EXPECT_EQ(make_tiered_backend({}, clock_).error(),
            (error{ec::invalid_argument, "0 tiers; expected 1 to 8"}));
  add(rules("never"));
  add(rules("hits:2"));
  EXPECT_EQ(make_tiered_backend(std::move(options_), clock_).error(),
            (error{ec::invalid_argument,
                   "no tier takes all writes, so nothing would be stored; expected one to do so"}));
}

TEST_F(TieredBackendTest, WritesGoToTheTiersThatTakeAll) {
  auto& memory = add();
  auto& often = add(rules("hits:2"));
  auto& disk = add();
  auto& never = add(rules("never", false));
  ASSERT_TRUE(put(open(), key_of(1), bytes_of(1, object_bytes)));
  EXPECT_TRUE(has_in(memory, 1));
  EXPECT_FALSE(has_in(often, 1));
  EXPECT_TRUE(has_in(disk, 1));
  EXPECT_FALSE(has_in(never, 1));
}

TEST_F(TieredBackendTest, ATierTakesWhatTheOneAboveEvicts) {
  auto& memory = add({}, 2 * object_bytes);
  auto& disk = add(rules("evict"));
  auto& store = open();
  for (const auto number : {1u, 2u, 3u, 4u})
    ASSERT_TRUE(put(store, key_of(number), bytes_of(number, object_bytes)));
  for (const auto number : {1u, 2u}) {
    EXPECT_FALSE(has_in(memory, number));
    EXPECT_TRUE(has_in(disk, number));
  }
  for (const auto number : {3u, 4u}) {
    EXPECT_TRUE(has_in(memory, number));
    EXPECT_FALSE(has_in(disk, number));
  }
  for (const auto number : {1u, 2u, 3u, 4u})
    EXPECT_TRUE(is_right(number));
}

TEST_F(TieredBackendTest, WhatIsEvictedGoesDownTierByTier) {
  add({}, object_bytes);
  add(rules("evict", false), object_bytes);
  auto& last = add(rules("evict", false));
  auto& store = open();
  for (const auto number : {1u, 2u, 3u})
    ASSERT_TRUE(put(store, key_of(number), bytes_of(number, object_bytes)));
  EXPECT_TRUE(has_in(last, 1));
  EXPECT_FALSE(has_in(last, 2));
  for (const auto number : {1u, 2u, 3u})
    EXPECT_TRUE(is_right(number));
}

TEST_F(TieredBackendTest, AStoreThatDoesNotTellWhatItEvictsIsNamed) {
  const auto sentence = [](size_t tier) {
    return error{ec::invalid_argument,
                 "tier " + std::to_string(tier)
                   + " takes what the tier above evicts, but that one does not "
                     "tell; expected memory, disk or hf3fs there, without fp8"};
  };
  add(rules("evict"));
  add();
  EXPECT_EQ(make_tiered_backend(std::move(options_), clock_).error(), sentence(1));
  options_ = {};
  const auto folder = temporary_folder{};
  options_.tiers.push_back(
    {std::make_unique<storage_queue>(*make_file_backend({{folder.path()}, 7}, clock_), 0), {}});
  add(rules("evict"));
  EXPECT_EQ(make_tiered_backend(std::move(options_), clock_).error(), sentence(2));
}

TEST_F(TieredBackendTest, AWriteSucceedsIfOneTierStoresIt) {
  auto& memory = add();
  auto& disk = add();
  auto& store = open();
  memory.set_faults([](batch_kind) { return store_fault::full; });
  EXPECT_TRUE(put(store, key_of(1), bytes_of(1, object_bytes)));
  EXPECT_TRUE(is_right(1));
  disk.set_faults([](batch_kind) { return store_fault::full; });
  EXPECT_EQ(error_of(put(store, key_of(2), bytes_of(2, object_bytes))).code, ec::store_full);
}

TEST_F(TieredBackendTest, ObjectsAreFoundInTheFirstTierThatHasThem) {
  for (const auto parallel : {false, true}) {
    auto& memory = add();
    auto& disk = add();
    options_.looks_up_in_parallel = parallel;
    auto& store = open();
    put_in(memory, 1);
    put_in(disk, 2);
    put_in(memory, 3);
    put_in(disk, 3);
    const auto places
      = store.lookup(std::vector{key_of(1), key_of(2), key_of(3), key_of(4)}, no_deadline);
    ASSERT_TRUE(places[0] && places[1] && places[2]);
    for (const auto i : {0u, 1u, 2u})
      EXPECT_EQ(places[i]->tier, i % 2) << "page " << i + 1;
    EXPECT_EQ(error_of(places[3].has_value() ? result<void>{} : fail(places[3].error().code)).code,
              ec::not_found);
    // The tier of a place is read first: what memory has lost since comes from the disk.
    waiting_store::wait<std::vector<result<void>>>([&](auto done) {
      memory.remove(std::vector{key_of(1), key_of(3)}, no_deadline, done);
    });
    auto back
      = std::vector{page_bytes(object_bytes), page_bytes(object_bytes), page_bytes(object_bytes)};
    const auto read = store.get(std::vector{page_read{key_of(1), {back[0]}, *places[0]},
                                            page_read{key_of(2), {back[1]}, *places[1]},
                                            page_read{key_of(3), {back[2]}, *places[2]}},
                                no_deadline);
    EXPECT_EQ(error_of(read[0]).code, ec::not_found);
    EXPECT_TRUE(read[1] && read[2]);
    EXPECT_EQ(back[1], bytes_of(2, object_bytes));
    EXPECT_EQ(back[2], bytes_of(3, object_bytes));
  }
}

TEST_F(TieredBackendTest, WhatFailsInOneTierIsReadFromTheNext) {
  auto& memory = add();
  add();
  auto& store = open();
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, object_bytes)));
  for (const auto fault : {store_fault::lying, store_fault::lost}) {
    memory.set_faults(
      [fault](batch_kind kind) { return kind == batch_kind::read ? fault : store_fault::none; });
    EXPECT_TRUE(is_right(1));
  }
}

TEST_F(TieredBackendTest, TheErrorOfAnObjectThatNoTierHasSaysMost) {
  auto& memory = add();
  add();
  auto& store = open();
  put_in(memory, 1);
  memory.set_faults([](batch_kind kind) {
    return kind == batch_kind::read ? store_fault::lying : store_fault::none;
  });
  EXPECT_EQ(take(store, key_of(1), object_bytes).error().code, ec::corrupt_page);
  EXPECT_EQ(take(store, key_of(2), object_bytes).error().code, ec::corrupt_page);
  memory.set_faults({});
  EXPECT_EQ(take(store, key_of(2), object_bytes).error().code, ec::not_found);
}

TEST_F(TieredBackendTest, TheSecondUseIsCopiedToTheTiersAbove) {
  auto& memory = add();
  auto& fixed = add(rules("all", false));
  auto& disk = add();
  open();
  put_in(disk, 1);
  EXPECT_TRUE(is_right(1));
  EXPECT_FALSE(has_in(memory, 1)) << "a scan must not fill memory";
  EXPECT_TRUE(is_right(1));
  EXPECT_TRUE(has_in(memory, 1));
  EXPECT_FALSE(has_in(fixed, 1)) << "its rules say so";
  EXPECT_TRUE(is_right(1));
}

TEST_F(TieredBackendTest, TheNthUseIsCopiedToATierBelow) {
  auto& memory = add();
  auto& disk = add(rules("hits:3"));
  auto& store = open();
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, object_bytes)));
  for (auto uses = 1; uses <= 3; ++uses) {
    EXPECT_FALSE(has_in(disk, 1)) << uses;
    EXPECT_TRUE(is_right(1));
  }
  EXPECT_TRUE(has_in(disk, 1));
  EXPECT_TRUE(has_in(memory, 1));
}

TEST_F(TieredBackendTest, WhatIsLossyIsCopiedOnlyWhereNobodyTakesItForLossless) {
  auto& memory = add();
  auto& cluster = add();
  auto& disk = add();
  auto& small = add();
  auto& lossy = add();
  cluster.claim({.is_shared = true});
  disk.claim({.survives_restarts = true});
  small.claim({.is_shared = true, .is_lossy = true});
  lossy.claim({.is_lossy = true});
  open();
  put_in(lossy, 1);
  for (auto uses = 0; uses < 2; ++uses)
    EXPECT_TRUE(is_right(1));
  EXPECT_TRUE(has_in(memory, 1) && has_in(small, 1));
  EXPECT_FALSE(has_in(cluster, 1) || has_in(disk, 1));
}

/// What is copied is read until the batch ends, so its parts must not be given to others before.
TEST_F(TieredBackendTest, ObjectsToBeCopiedAreNotReportedBefore) {
  add();
  auto& disk = add();
  auto& store = open();
  constexpr auto objects = size_t{4};
  auto back = std::vector<page_bytes>(objects, page_bytes(object_bytes));
  auto reads = std::vector<page_read>{};
  for (auto i = size_t{0}; i < objects; ++i) {
    put_in(disk, i);
    reads.push_back({key_of(i), {back[i]}});
  }
  EXPECT_TRUE(is_right(1)) << "the next use is its second one";
  // The first half is read and reported, then the store hangs.
  disk.set_faults([](batch_kind) { return store_fault::stuck; });
  auto reported = std::vector<size_t>{};
  auto answer = std::promise<std::vector<result<void>>>{};
  store.backend().read(
    reads, no_deadline, [&](auto x) { answer.set_value(std::move(x)); },
    [&](size_t first, auto some) {
      for (auto i = size_t{0}; i < some.size(); ++i)
        reported.push_back(first + i);
    });
  while (!disk.release_one(store_fault::stuck))
    std::this_thread::yield();
  for (const auto& outcome : answer.get_future().get())
    EXPECT_TRUE(outcome);
  EXPECT_THAT(reported, ElementsAre(0u));
}

TEST_F(TieredBackendTest, CopiesKeepToTheirMemory) {
  options_.copy_bytes = object_bytes;
  auto& memory = add();
  auto& disk = add();
  auto& store = open();
  put_in(disk, 1);
  put_in(disk, 2);
  memory.set_faults([](batch_kind kind) {
    return kind == batch_kind::write ? store_fault::late : store_fault::none;
  });
  const auto use_both = [&] {
    auto back = std::vector<page_bytes>(2, page_bytes(object_bytes));
    store.get(std::vector{page_read{key_of(1), {back[0]}}, page_read{key_of(2), {back[1]}}},
              no_deadline);
  };
  use_both();
  use_both();
  memory.set_faults({});
  memory.release();
  EXPECT_TRUE(has_in(memory, 1));
  EXPECT_FALSE(has_in(memory, 2)) << "there was memory for one copy";
  EXPECT_TRUE(is_right(2));
  EXPECT_TRUE(has_in(memory, 2)) << "the memory is free again";
}

TEST_F(TieredBackendTest, OnlyCopiesToTiersAboveArePromotions) {
  auto& memory = add();
  auto& disk = add();
  auto& often = add(rules("hits:2", false));
  open();
  put_in(disk, 1);
  for (auto i = 0; i < 2; ++i)
    EXPECT_TRUE(is_right(1));
  EXPECT_TRUE(has_in(memory, 1) && has_in(often, 1));
  EXPECT_EQ(memory.promotions(), 1u);
  EXPECT_EQ(disk.promotions(), 0u);
  EXPECT_EQ(often.promotions(), 0u);
}

TEST_F(TieredBackendTest, ATierThatFailsIsLeftOutForAWhile) {
  options_.breaker.failures = 2;
  auto& memory = add();
  add();
  auto& store = open();
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, object_bytes)));
  auto asked = 0;
  memory.set_faults([&asked](batch_kind kind) {
    asked += kind == batch_kind::read ? 1 : 0;
    return store_fault::torn;
  });
  for (auto i = 0; i < 5; ++i)
    EXPECT_TRUE(is_right(1)) << i;
  EXPECT_EQ(asked, 2);
  EXPECT_THAT(notices_, ElementsAre(HasSubstr("reads of tier 1 of L3 (memory) are left out")));
  memory.set_faults([&asked](batch_kind) {
    ++asked;
    return store_fault::none;
  });
  clock_.advance(breaker_policy{}.pause_min);
  EXPECT_TRUE(is_right(1)) << "the probe";
  EXPECT_TRUE(is_right(1));
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(notices_.size(), 2u);
}

/// A store hangs, its batch expires, and it is answered once the store returns.
TEST_F(TieredBackendTest, ABatchOfATierThatHangsExpires) {
  auto& memory = add();
  auto& disk = add();
  auto& store = open();
  put_in(memory, 1);
  put_in(disk, 2);
  memory.set_faults([](batch_kind) { return store_fault::late; });
  auto back = page_bytes(object_bytes);
  auto answer = std::promise<std::vector<result<void>>>{};
  auto begun = std::promise<void>{};
  const auto number = store.backend().read(
    store_batch<page_read>{1,
                           [&] {
                             begun.set_value();
                             return std::vector{page_read{key_of(1), {back}}};
                           }},
    no_deadline, [&](auto x) { answer.set_value(std::move(x)); }, {});
  begun.get_future().wait();
  EXPECT_EQ(store.backend().expire(number), storage_backend::expiry::running);
  // Whether the call was under way then, or began later.
  while (!memory.release_one(store_fault::late))
    std::this_thread::yield();
  EXPECT_EQ(answer.get_future().get().size(), 1u);
  EXPECT_EQ(store.backend().expire(number), storage_backend::expiry::finished);
}

TEST_F(TieredBackendTest, AnOnlyTierMakesTheListsOfItsBatches) {
  for (const auto tiers : {1, 2}) {
    options_ = {};
    for (auto i = 0; i < tiers; ++i)
      add(); // Its calls run on the thread that makes them.
    auto& store = open();
    auto threads = std::vector<std::thread::id>{};
    const auto listing = [&]<class T>(T item) {
      return store_batch<T>{1, [&threads, item] {
                              threads.push_back(std::this_thread::get_id());
                              return std::vector{item};
                            }};
    };
    const auto bytes = bytes_of(1, object_bytes);
    auto back = page_bytes(object_bytes);
    using outcomes = std::vector<result<void>>;
    EXPECT_TRUE(
      waiting_store::wait<outcomes>([&](auto done) {
        store.backend().write(listing(page_write{key_of(1), {}, {bytes}}), no_deadline, done);
      }).at(0));
    const auto place = waiting_store::wait<std::vector<result<store_place>>>([&](auto done) {
                         store.backend().lookup(listing(key_of(1)), no_deadline, done);
                       }).at(0);
    ASSERT_TRUE(place);
    EXPECT_TRUE(
      waiting_store::wait<outcomes>([&](auto done) {
        store.backend().read(listing(page_read{key_of(1), {back}, *place}), no_deadline, done, {});
      }).at(0));
    EXPECT_EQ(back, bytes);
    EXPECT_TRUE(waiting_store::wait<outcomes>([&](auto done) {
                  store.backend().remove(listing(key_of(1)), no_deadline, done);
                }).at(0));
    ASSERT_EQ(threads.size(), 4u);
    for (const auto& thread : threads)
      EXPECT_EQ(thread == std::this_thread::get_id(), tiers == 1);
  }
}

TEST_F(TieredBackendTest, ABatchThatWaitsIsWithdrawn) {
  add();
  add();
  auto& store = open();
  auto gate = std::promise<void>{};
  const auto open_gate = gate.get_future().share();
  // Both threads of the store are kept busy.
  auto answers = std::vector<std::promise<void>>(2);
  auto begun = std::vector<std::promise<void>>(2);
  for (auto i = size_t{0}; i < 2; ++i)
    store.backend().lookup(store_batch<page_key>{1,
                                                 [&, i] {
                                                   begun[i].set_value();
                                                   open_gate.wait();
                                                   return std::vector{key_of(1)};
                                                 }},
                           no_deadline, [&, i](const auto&) { answers[i].set_value(); });
  for (auto& each : begun)
    each.get_future().wait();
  const auto number = store.backend().lookup(std::vector{key_of(2)}, no_deadline,
                                             [](const auto&) { FAIL() << "answered"; });
  EXPECT_EQ(store.backend().expire(number), storage_backend::expiry::withdrawn);
  gate.set_value();
  for (auto& each : answers)
    each.get_future().wait();
}

TEST_F(TieredBackendTest, ABatchThatThrowsFailsAlone) {
  add();
  add();
  auto& store = open();
  const auto outcomes = waiting_store::wait<std::vector<result<void>>>([&](auto done) {
    store.backend().write(
      store_batch<page_write>{
        1, []() -> std::vector<page_write> { throw std::runtime_error{"no list"}; }},
      no_deadline, done);
  });
  EXPECT_EQ(outcomes[0].error(), (error{ec::io_failure, "a batch threw: no list"}));
  EXPECT_TRUE(put(store, key_of(1), bytes_of(1, object_bytes)));
}

TEST_F(TieredBackendTest, FiguresAreOfObjectsNotOfTiers) {
  add();
  auto& disk = add();
  auto& store = open();
  put_in(disk, 1);
  EXPECT_TRUE(is_right(1));
  EXPECT_FALSE(take(store, key_of(2), object_bytes));
  const auto health = store.health();
  EXPECT_TRUE(health.ok);
  EXPECT_EQ(health.counters.hits, 1u) << "the miss in memory is none";
  EXPECT_EQ(health.counters.misses, 1u);
  EXPECT_EQ(health.objects, 1u);
  EXPECT_EQ(health.bytes, object_bytes);
  ASSERT_EQ(health.tiers.size(), 2u);
  EXPECT_EQ(health.tiers[0].name, "memory");
  EXPECT_EQ(health.tiers[0].health.counters.misses, 2u);
  EXPECT_EQ(health.tiers[1].health.counters.hits, 1u);
  EXPECT_EQ(health.tiers[1].health.objects, 1u);
}

TEST_F(TieredBackendTest, HealthNamesTheTierThatIsLeftOut) {
  options_.breaker.failures = 1;
  auto& memory = add();
  add();
  auto& store = open();
  memory.set_faults([](batch_kind) { return store_fault::torn; });
  EXPECT_TRUE(put(store, key_of(1), bytes_of(1, object_bytes)));
  const auto health = store.health();
  EXPECT_TRUE(health.ok) << "the other tier works";
  EXPECT_EQ(health.detail, "memory: writes are left out: failing");
  EXPECT_FALSE(health.tiers[0].health.ok);
  EXPECT_TRUE(health.tiers[1].health.ok);
}

TEST_F(TieredBackendTest, ItsCapabilitiesAreThoseOfTheTiersThatTakeAllWrites) {
  /// A test double: a store that claims what the test wants.
  class claiming_store final : public blocking_store {
  public:
    explicit claiming_store(store_capabilities claims) : claims_(claims) {}

    std::string name() const override { return "claiming"; }

    store_capabilities capabilities() const override { return claims_; }

    std::vector<bool> exists(std::span<const page_key> keys, time_point) override {
      return std::vector<bool>(keys.size());
    }

    std::vector<result<void>> get(std::span<const page_read> pages, time_point) override {
      return std::vector<result<void>>(pages.size());
    }

    std::vector<result<void>> set(std::span<const page_write> pages, time_point) override {
      return std::vector<result<void>>(pages.size());
    }

    std::vector<result<void>> remove(std::span<const page_key> keys, time_point) override {
      return std::vector<result<void>>(keys.size());
    }

    backend_health health() override { return {}; }

  private:
    const store_capabilities claims_;
  };
  const auto capabilities_with = [&](const std::string& writes, store_capabilities claims) {
    options_ = {};
    add();
    options_.tiers.push_back(
      {std::make_unique<storage_queue>(std::make_unique<claiming_store>(claims), 1),
       rules(writes)});
    return open().capabilities();
  };
  const auto shared
    = store_capabilities{.survives_restarts = true, .is_shared = true, .orders_writes = true};
  const auto takes_all = capabilities_with("all", shared);
  EXPECT_TRUE(takes_all.survives_restarts && takes_all.is_shared);
  EXPECT_FALSE(takes_all.orders_writes || takes_all.tells_occupancy);
  EXPECT_FALSE(capabilities_with("hits:2", shared).is_shared)
    << "what is written is not shared at once";
}

TEST_F(TieredBackendTest, RemovesFromAllTiers) {
  auto& memory = add();
  auto& disk = add();
  auto& store = open();
  ASSERT_TRUE(put(store, key_of(1), bytes_of(1, object_bytes)));
  EXPECT_TRUE(drop(store, key_of(1)));
  EXPECT_FALSE(has_in(memory, 1));
  EXPECT_FALSE(has_in(disk, 1));
  disk.set_faults([](batch_kind) { return store_fault::torn; });
  EXPECT_FALSE(drop(store, key_of(1)));
}

TEST_F(TieredBackendTest, WhatATierMayStillHaveIsNotRemoved) {
  options_.breaker.failures = 1;
  add();
  auto& disk = add();
  auto& store = open();
  for (const auto number : {1u, 2u})
    ASSERT_TRUE(put(store, key_of(number), bytes_of(number, object_bytes)));
  const auto remove_both = [&] {
    return store.remove(std::vector{key_of(1), key_of(2)}, no_deadline);
  };
  disk.set_faults([](batch_kind) { return store_fault::torn; });
  EXPECT_FALSE(drop(store, key_of(2)));
  disk.set_faults({});
  EXPECT_EQ(error_of(remove_both()[0]).code, ec::peer_unreachable) << "the tier is left out";
  clock_.advance(breaker_policy{}.pause_min);
  const auto probe = remove_both();
  EXPECT_TRUE(probe[0]);
  EXPECT_EQ(error_of(probe[1]).code, ec::peer_unreachable) << "the probe removes one object";
  EXPECT_TRUE(has_in(disk, 2));
  EXPECT_TRUE(remove_both()[1]);
  EXPECT_FALSE(has_in(disk, 2));
}

/// Whatever goes wrong in the tiers: each batch is answered once, and no wrong byte comes back.
TEST_F(TieredBackendTest, NoFaultOfATierBringsWrongBytes) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  auto random = std::mt19937_64{seed};
  auto tiers = std::vector<faulty_store*>{&add(), &add(rules("hits:2")), &add()};
  auto& store = open();
  const auto without_hanging = [&](faulty_store::fault_source faults) {
    return [faults = std::move(faults)](batch_kind kind) {
      const auto fault = faults(kind);
      return fault == store_fault::late || fault == store_fault::stuck ? store_fault::torn : fault;
    };
  };
  for (auto* tier : tiers)
    tier->set_faults(without_hanging(faults_by_chance(random(), 0.3)));
  for (auto i = 0; i < 3000; ++i) {
    const auto number = random() % 40;
    const auto key = key_of(number);
    switch (random() % 4) {
      case 0:
        static_cast<void>(put(store, key, bytes_of(number, object_bytes)));
        break;
      case 1:
        static_cast<void>(has(store, key));
        break;
      case 2:
        clock_.advance(1s);
        break;
      default:
        if (const auto read = take(store, key, object_bytes)) {
          ASSERT_EQ(*read, bytes_of(number, object_bytes)) << number;
        }
    }
  }
}

} // namespace
} // namespace hicache::test
