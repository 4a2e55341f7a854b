// Tiers come and go while a store is in use.

#include "backends/file_backend.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/backends/tiered_fixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;
using outcomes = std::vector<result<void>>;
using testing::HasSubstr;

/// Long enough for whatever the test itself lets go on.
constexpr auto patience = 60s;

class TierChangesTest : public tiered_test {
protected:
  /// Adds a tier to the open store and uses it.
  faulty_store& insert(size_t at, const tier_rules& rules = {}, uint64_t max_bytes = 0) {
    auto store = new_store(max_bytes);
    auto& added = *store;
    const auto done = tiers_->add_tier({std::move(store), rules}, at);
    EXPECT_TRUE(done) << error_of(done).detail;
    tiers_->resume_tier(at);
    return added;
  }

  void take_out(size_t at) {
    const auto done = tiers_->suspend_tier(at, patience);
    ASSERT_TRUE(done) << error_of(done).detail;
    EXPECT_TRUE(tiers_->remove_tier(at, patience));
  }

  void put_all(std::initializer_list<uint64_t> numbers) {
    for (const auto number : numbers)
      ASSERT_TRUE(put(*store_, key_of(number), bytes_of(number, object_bytes)));
  }

  store_place place_of(uint64_t number) {
    return store_->lookup(std::vector{key_of(number)}, no_deadline)[0].value();
  }

  result<void> read(uint64_t number, const store_place& place) {
    auto bytes = page_bytes(object_bytes);
    const auto outcome
      = store_->get(std::vector{page_read{key_of(number), {bytes}, place}}, no_deadline)[0];
    EXPECT_TRUE(!outcome || bytes == bytes_of(number, object_bytes)) << number;
    return outcome;
  }

  /// A read that is in progress in a tier until the tier is released.
  std::future<outcomes> hold_read(faulty_store& tier, uint64_t number, page_bytes& into) {
    tier.set_faults([](batch_kind kind) {
      return kind == batch_kind::read ? store_fault::late : store_fault::none;
    });
    auto answer = std::make_shared<std::promise<outcomes>>();
    const auto reads = tier.held();
    last_batch_
      = store_->backend().read(std::vector{page_read{key_of(number), {into}}}, no_deadline,
                               [answer](auto x) { answer->set_value(std::move(x)); }, {});
    while (tier.held() == reads)
      std::this_thread::yield();
    return answer->get_future();
  }

  size_t tiers_in_use() { return store_->health().tiers.size(); }

  storage_backend::batch_number last_batch_ = 0;
};

TEST_F(TierChangesTest, ATierTakesCallsOnceItIsInUse) {
  add();
  auto& store = open();
  auto fresh = new_store();
  auto& disk = *fresh;
  ASSERT_TRUE(tiers_->add_tier({std::move(fresh), {}}, 1));
  put_all({1});
  EXPECT_FALSE(has_in(disk, 1));
  EXPECT_EQ(tiers_in_use(), 1u);
  tiers_->resume_tier(1);
  put_all({2});
  EXPECT_TRUE(has_in(disk, 2));
  EXPECT_EQ(tiers_in_use(), 2u);
  put_in(disk, 3);
  EXPECT_TRUE(has(store, key_of(3)));
  EXPECT_TRUE(is_right(3));
}

TEST_F(TierChangesTest, ATierThatIsNotUsedAfterAllLeavesNoTrace) {
  add({}, object_bytes);
  open();
  ASSERT_TRUE(tiers_->add_tier({new_store(), rules("evict")}, 1));
  EXPECT_TRUE(tiers_->remove_tier(1, patience));
  put_all({1, 2});
  EXPECT_EQ(tiers_in_use(), 1u);
  EXPECT_FALSE(take(*store_, key_of(1), object_bytes));
}

TEST_F(TierChangesTest, AnAddedTierKnowsTheMemoryOfTheOthers) {
  add();
  auto& store = open();
  auto memory = page_bytes(64);
  const auto regions = std::array{std::span{memory}};
  ASSERT_TRUE(store.backend().attach_memory(regions));
  EXPECT_EQ(insert(0).regions(), 1u);
}

TEST_F(TierChangesTest, ObjectsOfATierThatLeavesAreMisses) {
  add();
  auto& disk = add(rules("never"));
  open();
  put_all({1});
  put_in(disk, 2);
  take_out(1);
  EXPECT_TRUE(is_right(1));
  EXPECT_EQ(take(*store_, key_of(2), object_bytes).error().code, ec::not_found);
}

TEST_F(TierChangesTest, PlacesMeanTheSameTiersAfterAChange) {
  auto& memory = add();
  auto& disk = add();
  open();
  put_in(memory, 1);
  put_in(disk, 2);
  const auto first = place_of(1);
  const auto second = place_of(2);
  auto& fresh = insert(0, rules("all", false));
  auto asked = 0;
  for (auto* other : {&fresh, &memory})
    other->set_faults([&asked](batch_kind) {
      ++asked;
      return store_fault::none;
    });
  EXPECT_TRUE(read(2, second));
  EXPECT_EQ(asked, 0) << "the place names the last tier";
  EXPECT_TRUE(read(1, first));
  EXPECT_EQ(asked, 1) << "the place names the middle tier";
}

TEST_F(TierChangesTest, APlaceInATierThatHasLeftIsAMissThere) {
  add();
  auto& disk = add(rules("never", false));
  auto& last = add(rules("never", false));
  open();
  for (const auto number : {1u, 2u})
    put_in(disk, number);
  put_in(last, 2);
  const auto gone = place_of(1);
  const auto elsewhere = place_of(2);
  take_out(1);
  EXPECT_EQ(error_of(read(1, gone)).code, ec::not_found);
  EXPECT_TRUE(read(2, elsewhere)) << "another tier has it";
}

TEST_F(TierChangesTest, ATierLeavesWhenItsCallsHaveEnded) {
  auto& memory = add();
  auto& disk = add();
  open();
  put_in(disk, 1);
  put_in(memory, 2);
  auto bytes = page_bytes(object_bytes);
  auto answer = hold_read(disk, 1, bytes);
  auto suspended
    = std::async(std::launch::async, [&] { return tiers_->suspend_tier(1, patience); });
  while (tiers_in_use() > 1)
    std::this_thread::yield();
  EXPECT_TRUE(is_right(2)) << "others go on";
  EXPECT_EQ(take(*store_, key_of(1), object_bytes).error().code, ec::not_found);
  disk.release();
  EXPECT_TRUE(suspended.get());
  EXPECT_TRUE(answer.get()[0]);
  EXPECT_EQ(bytes, bytes_of(1, object_bytes));
  EXPECT_TRUE(tiers_->remove_tier(1, patience));
}

TEST_F(TierChangesTest, ATierWhoseCallsDoNotEndStays) {
  add();
  auto& disk = add();
  auto& store = open();
  put_in(disk, 1);
  auto bytes = page_bytes(object_bytes);
  auto answer = hold_read(disk, 1, bytes);
  EXPECT_EQ(store.backend().expire(last_batch_), storage_backend::expiry::running);
  EXPECT_EQ(tiers_->suspend_tier(1, 0s).error(),
            (error{ec::deadline_exceeded, "calls of tier 2 (memory) are still under way"}));
  disk.set_faults({});
  EXPECT_TRUE(is_right(1)) << "it goes on";
  disk.release();
  answer.get();
  take_out(1);
}

TEST_F(TierChangesTest, ATierLeavesAfterTheCopiesOnTheirWayToIt) {
  auto& memory = add(rules("never"));
  auto& disk = add();
  open();
  put_in(disk, 1);
  memory.set_faults([](batch_kind kind) {
    return kind == batch_kind::write ? store_fault::late : store_fault::none;
  });
  EXPECT_TRUE(is_right(1) && is_right(1)) << "the second use is copied";
  EXPECT_EQ(tiers_->suspend_tier(0, 0s).error().code, ec::deadline_exceeded);
  memory.release();
  take_out(0);
  EXPECT_TRUE(is_right(1));
}

TEST_F(TierChangesTest, WhatWouldBreakARuleChangesNothing) {
  auto& memory = add({}, 2 * object_bytes);
  auto& disk = add(rules("evict", false));
  open();
  EXPECT_THAT(tiers_->suspend_tier(0, patience).error().detail, HasSubstr("no tier takes all"));
  EXPECT_THAT(tiers_->add_tier({new_store(), rules("evict")}, 0).error().detail,
              HasSubstr("tier 1 takes what the tier above evicts"));
  const auto folder = temporary_folder{};
  const auto files = [&] {
    return std::make_unique<storage_queue>(*make_file_backend({{folder.path()}, 7}, clock_), 0);
  };
  EXPECT_EQ(tiers_->add_tier({files(), {}}, 1).error(),
            (error{ec::invalid_argument,
                   "tier 3 takes what the tier above evicts, but that one does not tell; expected "
                   "memory, disk or hf3fs there, without fp8"}));
  put_all({1, 2, 3});
  EXPECT_TRUE(has_in(disk, 1) && !has_in(memory, 1)) << "what is evicted goes down as before";
  EXPECT_EQ(tiers_in_use(), 2u);
}

TEST_F(TierChangesTest, TheNumberOfTiersIsBounded) {
  add();
  open();
  EXPECT_EQ(tiers_->suspend_tier(0, patience).error().detail, "0 tiers; expected 1 to 8");
  for (auto at = size_t{1}; at < 8; ++at)
    insert(at, rules("never"));
  EXPECT_EQ(tiers_->add_tier({new_store(), {}}, 0).error().detail, "9 tiers; expected 1 to 8");
  EXPECT_EQ(tiers_in_use(), 8u);
}

TEST_F(TierChangesTest, WhatIsEvictedGoesToTheTierThatIsBelowNow) {
  auto& memory = add({}, object_bytes);
  open();
  put_all({1, 2});
  auto& disk = insert(1, rules("evict", false));
  put_all({3});
  EXPECT_TRUE(has_in(disk, 2) && !has_in(disk, 1));
  auto& middle = insert(1, rules("never", false));
  put_all({4});
  EXPECT_FALSE(has_in(disk, 3) || has_in(middle, 3)) << "the tier below takes none";
  take_out(1);
  put_all({5});
  EXPECT_TRUE(has_in(disk, 4));
  take_out(1);
  put_all({6});
  EXPECT_TRUE(has_in(memory, 6));
  EXPECT_TRUE(is_right(6));
}

TEST_F(TierChangesTest, CountersOfATierThatLeavesStayInTheSum) {
  add({}, object_bytes);
  add();
  auto& store = open();
  put_all({1, 2, 3});
  EXPECT_EQ(store.health().counters.evicted, 2u);
  take_out(0);
  EXPECT_EQ(store.health().counters.evicted, 2u);
}

TEST_F(TierChangesTest, AStoreThatIsClosedClosesItsSuspendedTiers) {
  add();
  auto& store = open();
  ASSERT_TRUE(tiers_->add_tier({new_store(), {}}, 1));
  EXPECT_TRUE(store.backend().close(patience));
}

TEST_F(TierChangesTest, WhetherTheOthersShareIsTold) {
  add();
  add();
  open();
  EXPECT_FALSE(tiers_->is_shared_without(1));
  const auto folder = temporary_folder{};
  ASSERT_TRUE(tiers_->add_tier(
    {std::make_unique<storage_queue>(*make_file_backend({{folder.path()}, 7}, clock_), 0), {}}, 0));
  EXPECT_TRUE(tiers_->is_shared_without(1));
  EXPECT_FALSE(tiers_->is_shared_without(0));
}

/// Threads use the store while its tiers change at random.
TEST_F(TierChangesTest, NoChangeBringsWrongBytesOrLosesABatch) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const auto queue = [&](uint64_t max_bytes) {
    return std::make_unique<storage_queue>(make_memory_backend(max_bytes, clock_), 2);
  };
  options_.tiers.push_back({queue(20 * object_bytes), {}});
  auto& store = open();
  auto is_over = std::atomic{false};
  const auto use = [&](uint64_t number) {
    auto random = std::mt19937_64{number};
    while (!is_over) {
      const auto object = random() % 60;
      const auto bytes = bytes_of(object, object_bytes);
      if (random() % 2 == 0)
        static_cast<void>(put(store, key_of(object), bytes));
      else
        EXPECT_EQ(take(store, key_of(object), object_bytes).value_or(bytes), bytes) << object;
    }
  };
  auto users = std::vector<std::jthread>{};
  for (auto i = uint64_t{0}; i < 3; ++i)
    users.emplace_back(use, seed + i);
  auto random = std::mt19937_64{seed};
  auto tiers = size_t{1};
  for (auto i = 0; i < 300; ++i) {
    const auto at = random() % (tiers + 1);
    if (tiers < 4 && random() % 2 == 0) {
      const auto which = at > 0 && random() % 2 == 0 ? "evict" : "all";
      if (tiers_->add_tier({queue(40 * object_bytes), rules(which)}, at)) {
        random() % 4 == 0 ? void(tiers_->remove_tier(at, patience)) : tiers_->resume_tier(at);
        tiers = tiers_in_use();
      }
    } else if (at < tiers && tiers_->suspend_tier(at, patience)) {
      random() % 4 == 0 ? tiers_->resume_tier(at) : void(tiers_->remove_tier(at, patience));
      tiers = tiers_in_use();
    }
  }
  is_over = true;
}

TEST_F(TierChangesTest, PlacesSayWhichTierAndItsName) {
  auto& upper = add();
  auto& lower = add();
  open();
  put_in(upper, 1);
  put_in(lower, 2);
  const auto tiers = [this] {
    auto found = std::vector<uint32_t>{};
    for (const auto& place : waiting_store::wait<std::vector<result<store_place>>>([&](auto done) {
           tiers_->lookup(std::vector{key_of(1), key_of(2)}, no_deadline, done);
         }))
      found.push_back(place ? place->tier : UINT32_MAX);
    return found;
  };
  EXPECT_EQ(tiers(), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(*tiers_->tiers(), (std::vector<std::string>{"memory", "memory"}));
  insert(0);
  EXPECT_EQ(tiers(), (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(tiers_->tiers()->size(), 3u);
}

} // namespace
} // namespace hicache::test
