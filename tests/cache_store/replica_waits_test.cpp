#include "cache/store/replica_waits.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace hicache {
namespace {

using test::key_of;

using numbers = std::vector<uint64_t>;

TEST(ReplicaWaitsTest, APageEndsTheWaitsForItAndNoOthers) {
  auto waits = replica_waits{};
  const auto first = waits.add({key_of(1), key_of(2)});
  const auto second = waits.add({key_of(2)});
  const auto third = waits.add({key_of(3)});
  EXPECT_EQ(waits.size(), 4u);
  EXPECT_EQ(waits.take(key_of(4)), numbers{});
  EXPECT_EQ(waits.take(key_of(2)), (numbers{first, second}));
  EXPECT_EQ(waits.take(key_of(1)), numbers{}) << "its wait has ended";
  EXPECT_EQ(waits.take(key_of(3)), numbers{third});
  EXPECT_EQ(waits.size(), 0u);
}

TEST(ReplicaWaitsTest, AWaitThatIsRemovedIsNotEndedByAPage) {
  auto waits = replica_waits{};
  const auto first = waits.add({key_of(1), key_of(2)});
  const auto second = waits.add({key_of(1)});
  waits.remove(first);
  waits.remove(first);
  EXPECT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits.take(key_of(2)), numbers{});
  EXPECT_EQ(waits.take(key_of(1)), numbers{second});
}

TEST(ReplicaWaitsTest, AWaitMayNameAPageTwice) {
  auto waits = replica_waits{};
  const auto number = waits.add({key_of(1), key_of(1)});
  EXPECT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits.take(key_of(1)), numbers{number});
  EXPECT_EQ(waits.size(), 0u);
}

} // namespace
} // namespace hicache
