// Power fails at any moment, and each sector that was not synced is old or new.

#include "tests/backends/disk/disk_support.hpp"
#include "tests/support/manual_clock.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace hicache::test {
namespace {

constexpr auto segment_bytes = uint64_t{1} << 17;
constexpr auto numbers_in_use = uint64_t{200};

size_t size_of(uint64_t number) {
  return 1 + number * 7919 % 12000;
}

const page_bytes& object_of(uint64_t number) {
  static const auto all = [] {
    auto objects = std::vector<page_bytes>{};
    for (auto i = uint64_t{0}; i < numbers_in_use; ++i)
      objects.push_back(bytes_of(i, size_of(i)));
    return objects;
  }();
  return all[number];
}

/// A store that loses power three times.
class crashing_run {
public:
  explicit crashing_run(uint64_t seed) : random_(seed) {
    // Half of the runs evict and clean.
    const auto live = random_() % 2 == 0 ? uint64_t{40} : 2 * numbers_in_use;
    options_ = options_for(live * 2 * disk_block_bytes, segment_bytes);
  }

  void run() {
    for (auto round = 0; round < 3; ++round) {
      const auto store = open_store(options_, image_, clock_);
      check(*store);
      image_.fail_after(1 + random_() % 150);
      for (auto steps = 0; image_.has_power() && steps < 1000; ++steps)
        step(*store);
      ASSERT_FALSE(image_.has_power()) << "nothing is written any more";
      note_evicted(*store);
      image_.lose_power(random_);
    }
    check(*open_store(options_, image_, clock_));
  }

private:
  void step(blocking_store& store) {
    auto numbers = std::vector<uint64_t>(1 + random_() % 6);
    for (auto& number : numbers)
      number = random_() % numbers_in_use;
    if (random_() % 5 == 0)
      remove(store, numbers);
    else
      write(store, numbers);
  }

  void write(blocking_store& store, const std::vector<uint64_t>& numbers) {
    auto writes = std::vector<page_write>{};
    for (const auto number : numbers)
      writes.push_back({key_of(number), {}, {object_of(number)}});
    const auto outcomes = store.set(writes, no_deadline);
    for (auto i = size_t{0}; i < numbers.size(); ++i) {
      removed_.erase(numbers[i]);
      if (outcomes[i])
        stored_.insert(numbers[i]);
    }
  }

  void remove(blocking_store& store, const std::vector<uint64_t>& numbers) {
    for (const auto number : numbers) {
      stored_.erase(number);
      // What was evicted, or not answered, may come back.
      const auto was_there = has(store, key_of(number));
      if (drop(store, key_of(number)) && was_there)
        removed_.insert(number);
    }
  }

  void note_evicted(blocking_store& store) {
    std::erase_if(stored_, [&](uint64_t number) { return !has(store, key_of(number)); });
  }

  void check(blocking_store& store) {
    for (auto number = uint64_t{0}; number < numbers_in_use; ++number) {
      const auto is_there = has(store, key_of(number));
      EXPECT_TRUE(is_there || !stored_.contains(number)) << number << " was stored";
      EXPECT_FALSE(is_there && removed_.contains(number)) << number << " was removed";
      const auto found = take(store, key_of(number), size_of(number));
      EXPECT_EQ(found.has_value(), is_there) << number << " was offered";
      EXPECT_TRUE(!found || *found == object_of(number)) << number;
    }
  }

  std::mt19937_64 random_;
  manual_clock clock_;
  disk_image image_{segment_bytes};
  disk_options options_;
  /// Of answered writes.
  std::set<uint64_t> stored_;
  /// Of answered removals.
  std::set<uint64_t> removed_;
};

TEST(DiskCrash, WhatWasAnsweredIsThereAndAllThatIsOfferedVerifies) {
  const auto first = uint64_t{std::random_device{}()};
  for (auto seed = first; seed < first + HICACHE_CRASH_RUNS; ++seed) {
    crashing_run{seed}.run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
}

} // namespace
} // namespace hicache::test
