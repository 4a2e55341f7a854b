// What a store made of stores lists, and when it says that an object is evicted.

#include "backends/file_backend.hpp"
#include "tests/backends/temporary_folder.hpp"
#include "tests/backends/tiered_fixture.hpp"

#include <gmock/gmock.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

namespace hicache::test {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;

/// What a store says about evictions.
class told_evictions {
public:
  /// Begins to listen. @returns whether the store tells of all objects
  bool watch(storage_backend& store) {
    return store.watch_evictions(
      [this](std::span<const evicted_object> objects) {
        const auto lock = std::scoped_lock{mutex_};
        for (const auto& object : objects)
          keys_.insert(object.key);
        changed_.notify_all();
      },
      false);
  }

  /// Waits for news of so many objects. @returns all so far
  std::set<page_key> wait_for(size_t count) {
    auto lock = std::unique_lock{mutex_};
    changed_.wait(lock, [&] { return keys_.size() >= count; });
    return keys_;
  }

private:
  std::mutex mutex_; // Guards what follows.
  std::condition_variable changed_;
  std::set<page_key> keys_;
};

class TieredListTest : public tiered_test {
protected:
  // The store tells on its own threads, also after the last answer; `told_` must outlive it.
  ~TieredListTest() override { store_.reset(); }

  /// How often each key is listed, until the list ends or fails.
  std::map<page_key, int> list_all(ec end = ec::none) {
    auto listed = std::map<page_key, int>{};
    auto from = std::string{};
    do {
      const auto part = store_->list(from, no_deadline);
      if (!part) {
        EXPECT_EQ(part.error().code, end) << part.error().detail;
        return listed;
      }
      for (const auto& object : part->objects)
        ++listed[object.key];
      from = part->next;
    } while (!from.empty());
    EXPECT_EQ(end, ec::none);
    return listed;
  }

  static std::map<page_key, int> once(const std::vector<uint64_t>& numbers) {
    auto keys = std::map<page_key, int>{};
    for (const auto number : numbers)
      keys.emplace(key_of(number), 1);
    return keys;
  }

  void store_pages(uint64_t first, uint64_t last) {
    for (auto number = first; number <= last; ++number)
      ASSERT_TRUE(put(*store_, key_of(number), bytes_of(number, object_bytes)));
  }

  told_evictions told_;
};

TEST_F(TieredListTest, EachObjectIsListedOnceWhicheverTiersHaveIt) {
  auto& memory = add();
  auto& disk = add();
  auto& last = add();
  open();
  EXPECT_THAT(list_all(), IsEmpty());
  for (const auto number : {1u, 2u, 3u})
    put_in(memory, number);
  for (const auto number : {2u, 3u, 4u})
    put_in(disk, number);
  for (const auto number : {3u, 4u, 5u})
    put_in(last, number);
  EXPECT_EQ(list_all(), once({1, 2, 3, 4, 5}));
}

TEST_F(TieredListTest, AListGoesOnBehindATierThatFailsAndFailsAtItsEnd) {
  auto& memory = add();
  auto& disk = add();
  open();
  put_in(memory, 1);
  put_in(disk, 2);
  memory.set_faults([](batch_kind kind) {
    return kind == batch_kind::list ? store_fault::torn : store_fault::none;
  });
  EXPECT_EQ(list_all(ec::peer_unreachable), once({2}));
  memory.set_faults({});
  EXPECT_EQ(list_all(), once({1, 2}));
}

TEST_F(TieredListTest, ATierThatIsLeftOutIsMissingInTheList) {
  options_.breaker.failures = 1;
  auto& memory = add();
  auto& disk = add();
  open();
  put_in(memory, 1);
  put_in(disk, 2);
  memory.set_faults([](batch_kind) { return store_fault::torn; });
  EXPECT_FALSE(has(*store_, key_of(9)));
  memory.set_faults({});
  EXPECT_EQ(list_all(ec::peer_unreachable), once({2}));
}

TEST_F(TieredListTest, AnObjectIsEvictedWhenNoTierHasIt) {
  add({}, 2 * object_bytes);
  add({}, 3 * object_bytes);
  ASSERT_TRUE(told_.watch(open().backend()));
  store_pages(1, 5);
  EXPECT_THAT(told_.wait_for(2), UnorderedElementsAre(key_of(1), key_of(2)));
}

TEST_F(TieredListTest, WhatTheTierAboveStillHasIsNotEvicted) {
  add();
  add({}, object_bytes);
  add({}, 4 * object_bytes);
  auto& memory = *options_.tiers.front().store;
  ASSERT_TRUE(told_.watch(open().backend()));
  store_pages(1, 5);
  waiting_store::wait<std::vector<result<void>>>(
    [&](auto done) { memory.remove(std::vector{key_of(2)}, no_deadline, done); });
  store_pages(6, 6);
  EXPECT_THAT(told_.wait_for(1), UnorderedElementsAre(key_of(2)));
}

TEST_F(TieredListTest, WhatATierTakesFromTheOneAboveIsEvictedWithIt) {
  add({}, object_bytes);
  auto& below = add(rules("evict"), 2 * object_bytes);
  ASSERT_TRUE(told_.watch(open().backend()));
  store_pages(1, 4);
  EXPECT_THAT(told_.wait_for(1), UnorderedElementsAre(key_of(1)));
  below.set_faults([](batch_kind kind) {
    return kind == batch_kind::write ? store_fault::full : store_fault::none;
  });
  store_pages(5, 5);
  EXPECT_THAT(told_.wait_for(2), UnorderedElementsAre(key_of(1), key_of(4))) << "it has no room";
}

TEST_F(TieredListTest, ATierThatDoesNotTellMakesTheNewsIncomplete) {
  const auto folder = temporary_folder{};
  add({}, object_bytes);
  options_.tiers.push_back(
    {std::make_unique<storage_queue>(*make_file_backend({{folder.path()}, 7}, clock_), 0),
     rules("never", false)});
  EXPECT_FALSE(told_.watch(open().backend()));
  store_pages(1, 2);
  EXPECT_THAT(told_.wait_for(1), UnorderedElementsAre(key_of(1)));
  EXPECT_FALSE(store_->backend().watch_evictions({}, true)) << "bytes are not at hand";
}

TEST_F(TieredListTest, CopiesKeepTheirNamespace) {
  auto& memory = add({}, object_bytes);
  auto& below = add(rules("evict"));
  open();
  for (const auto number : {1u, 2u}) {
    const auto bytes = bytes_of(number, object_bytes);
    const auto page = page_write{key_of(number), {}, {bytes}, 0, 70 + number};
    ASSERT_TRUE(store_->set(std::vector{page}, no_deadline)[0]);
  }
  const auto namespaces_in = [](storage_backend& tier) {
    auto listed = std::map<page_key, uint64_t>{};
    const auto part = waiting_store::wait<result<object_list>>(
      [&](auto done) { tier.list({}, no_deadline, done); });
    for (const auto& object : part->objects)
      listed.emplace(object.key, object.fingerprint);
    return listed;
  };
  using namespaces = std::map<page_key, uint64_t>;
  EXPECT_EQ(namespaces_in(below), (namespaces{{key_of(1), 71}}));
  for (auto uses = 0; uses < 2; ++uses) {
    auto bytes = page_bytes(object_bytes);
    const auto page = page_read{key_of(1), {bytes}, {}, {}, 0, 71};
    ASSERT_TRUE(store_->get(std::vector{page}, no_deadline)[0]);
  }
  EXPECT_EQ(namespaces_in(memory), (namespaces{{key_of(1), 71}})) << "it was promoted";
}

} // namespace
} // namespace hicache::test
