#include "cache/store/repair_queue.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using test::key_of;

constexpr auto start = time_point{};
constexpr auto usual = repair_policy{};
constexpr auto all = size_t{100};

using keys = std::vector<page_key>;

TEST(RepairQueueTest, ALossWaitsAMomentAndIsTakenOnce) {
  auto queue = repair_queue{};
  queue.note(key_of(1), start);
  queue.note(key_of(1), start + 1s);
  EXPECT_TRUE(queue.take(start + usual.delay - 1ms, all).empty());
  EXPECT_EQ(queue.take(start + usual.delay, all), keys{key_of(1)});
  EXPECT_TRUE(queue.take(start + 1h, all).empty()) << "it is under way";
  EXPECT_EQ(queue.size(), 1u);
  queue.settle(keys{key_of(1)}, {}, start + 1h);
  EXPECT_EQ(queue.size(), 0u);
  EXPECT_TRUE(queue.take(start + 2h, all).empty());
}

TEST(RepairQueueTest, TheMomentIsThatOfItsPolicy) {
  auto queue = repair_queue{{.delay = 1min}};
  queue.note(key_of(1), start);
  EXPECT_TRUE(queue.take(start + 1min - 1ms, all).empty());
  EXPECT_EQ(queue.take(start + 1min, all), keys{key_of(1)});
  queue.note(key_of(1), start + 2min);
  queue.settle(keys{key_of(1)}, {}, start + 3min);
  EXPECT_TRUE(queue.take(start + 4min - 1ms, all).empty());
  EXPECT_EQ(queue.take(start + 4min, all), keys{key_of(1)});
}

TEST(RepairQueueTest, WhatIsRefusedIsTriedAfterPausesThatGrow) {
  auto queue = repair_queue{};
  queue.note(key_of(1), start);
  auto now = start + usual.delay;
  for (const auto pause : {30s, 60s, 120s, 240s, 480s, 600s, 600s}) {
    const auto taken = queue.take(now, all);
    ASSERT_EQ(taken.size(), 1u);
    queue.settle(taken, taken, now);
    EXPECT_TRUE(queue.take(now + pause - 1ms, all).empty());
    now += pause;
  }
  const auto taken = queue.take(now, all);
  queue.settle(taken, {}, now);
  queue.note(key_of(1), now);
  EXPECT_EQ(queue.take(now + usual.delay, all).size(), 1u) << "a new loss begins anew";
}

TEST(RepairQueueTest, NoMoreAreTakenThanAskedForAndThoseFirstThatWaitLongest) {
  auto queue = repair_queue{};
  for (auto i = uint64_t{0}; i < 10; ++i)
    queue.note(key_of(i), start - std::chrono::seconds{i});
  const auto now = start + usual.delay;
  EXPECT_EQ(queue.take(now, 3), (keys{key_of(9), key_of(8), key_of(7)}));
  EXPECT_EQ(queue.take(now, all).size(), 7u);
}

TEST(RepairQueueTest, ALossDuringARepairIsLookedAtAfterIt) {
  auto queue = repair_queue{};
  queue.note(key_of(1), start);
  const auto taken = queue.take(start + 5s, all);
  queue.note(key_of(1), start + 6s);
  queue.settle(taken, {}, start + 7s);
  EXPECT_EQ(queue.take(start + 7s + usual.delay, all), taken);
}

} // namespace
} // namespace hicache
