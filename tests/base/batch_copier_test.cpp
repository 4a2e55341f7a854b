#include "base/batch_copier.hpp"
#include "base/limits.hpp"
#include "base/units.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace hicache {
namespace {

using namespace literals;

TEST(BatchCopierTest, EachPositionIsCalledOnceAndNoWorkerTwiceAtATime) {
  auto copier = batch_copier{};
  for (auto round = 0; round < 20; ++round) {
    auto calls = std::vector<std::atomic<int>>(1000);
    auto is_busy = std::array<std::atomic<bool>, limits::copy_threads>{};
    copier.for_each(calls.size(), 64_MiB, [&](size_t position, uint32_t worker) {
      ASSERT_LT(worker, limits::copy_threads);
      EXPECT_FALSE(is_busy[worker].exchange(true));
      ++calls[position];
      is_busy[worker] = false;
    });
    for (const auto& count : calls)
      ASSERT_EQ(count, 1);
  }
}

TEST(BatchCopierTest, ALargeBatchIsSharedAndASmallOneIsNot) {
  if (std::thread::hardware_concurrency() < 2)
    GTEST_SKIP() << "one processor";
  auto copier = batch_copier{};
  // Only two threads get beyond it.
  auto both = std::latch{2};
  copier.for_each(2, 64_MiB, [&](size_t, uint32_t) { both.arrive_and_wait(); });
  const auto caller = std::this_thread::get_id();
  copier.for_each(100, 64_KiB, [&](size_t, uint32_t worker) {
    EXPECT_EQ(worker, 0u);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

TEST(BatchCopierTest, WhoFindsThreadsAtWorkGoesOnAlone) {
  auto copier = batch_copier{};
  auto inner = 0;
  auto once = std::once_flag{};
  copier.for_each(1, 64_MiB, [&](size_t, uint32_t) {
    std::call_once(once, [&] {
      std::jthread{[&] { copier.for_each(10, 64_MiB, [&](size_t, uint32_t) { ++inner; }); }}.join();
    });
  });
  EXPECT_EQ(inner, 10);
}

} // namespace
} // namespace hicache
