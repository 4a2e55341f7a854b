// What a store made of stores says about objects that no tier keeps.

#include "backends/memory_backend.hpp"
#include "backends/storage_queue.hpp"
#include "backends/tiered/tiered_backend.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/waiting_store.hpp"
#include "tests/support/manual_clock.hpp"

#include <gtest/gtest.h>

namespace hicache::test {
namespace {

constexpr auto object_bytes = size_t{256};

class TieredLossesTest : public testing::Test {
protected:
  /// Adds a tier in memory, which holds this many objects, below the others.
  void add(const std::string& writes, uint64_t objects, uint64_t bytes_per_day = 0) {
    auto rules = tier_rules{.writes = parse_tier_writes(writes).value(), .promotes = false};
    rules.bytes_per_day = bytes_per_day;
    options_.tiers.push_back(
      {std::make_unique<storage_queue>(make_memory_backend(objects * object_bytes, clock_), 0),
       rules});
  }

  /// Writes objects 1, 2... at these seconds. @returns the seconds that the store has told
  std::vector<int64_t> losses_after(uint32_t objects) {
    auto lost = std::vector<int64_t>{};
    auto store = waiting_store{make_tiered_backend(std::move(options_), clock_).value()};
    const auto begin = clock_.now();
    EXPECT_TRUE(store.watch_losses([&](time_point used) {
      lost.push_back(std::chrono::duration_cast<std::chrono::seconds>(used - begin).count());
    }));
    for (auto number = uint32_t{1}; number <= objects; ++number) {
      clock_.advance(std::chrono::seconds{1});
      EXPECT_TRUE(put(store, key_of(number), bytes_of(number, object_bytes)));
    }
    return lost;
  }

  manual_clock clock_;
  tiered_options options_;
};

TEST_F(TieredLossesTest, WhatALowerTierKeepsIsNotLost) {
  add("all", 1);
  add("all", 3);
  add("hits:2", 1);
  EXPECT_EQ(losses_after(5), (std::vector<int64_t>{1, 2}));
}

TEST_F(TieredLossesTest, WhatALowerTierHasTakenIsLostWithIt) {
  add("all", 1);
  add("evict", 1);
  EXPECT_EQ(losses_after(3), std::vector<int64_t>{2}) << "when the lower tier got the first one";
}

TEST_F(TieredLossesTest, WhatALowerTierWasToTakeAndDidNotIsLost) {
  add("all", 1);
  add("evict", 9, object_bytes);
  EXPECT_EQ(losses_after(3), std::vector<int64_t>{2}) << "the day's bytes are written";
}

} // namespace
} // namespace hicache::test
