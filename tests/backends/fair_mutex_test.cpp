#include "backends/fair_mutex.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace hicache {
namespace {

TEST(FairMutexTest, ThreadsGetItInTheOrderInWhichTheyAsked) {
  auto mutex = fair_mutex{};
  auto order = std::string{};
  const auto take = [&](char name) {
    mutex.lock();
    order += name;
    mutex.unlock();
  };
  const auto wait_for = [&](uint64_t count) {
    while (mutex.waiting() < count)
      std::this_thread::yield();
  };
  mutex.lock();
  auto first = std::jthread{take, 'a'};
  wait_for(1);
  auto second = std::jthread{take, 'b'};
  wait_for(2);
  mutex.unlock();
  take('c');
  EXPECT_EQ(order, "abc");
  EXPECT_EQ(mutex.waiting(), 0u);
}

} // namespace
} // namespace hicache
