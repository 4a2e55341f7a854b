#include "cache/store/extent_allocator.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace hicache {
namespace {

TEST(ExtentAllocatorTest, TakesTheSmallestHoleThatFitsAndOfEqualOnesTheFirst) {
  auto extents = extent_allocator{100};
  for (const auto bytes : {10, 20, 10, 20, 10})
    EXPECT_TRUE(extents.take(static_cast<uint64_t>(bytes)));
  extents.give_back(10, 20);
  extents.give_back(40, 20);
  EXPECT_EQ(extents.take(20), 10u);
  EXPECT_EQ(extents.take(25), 70u);
  EXPECT_EQ(extents.take(25), std::nullopt);
  EXPECT_EQ(extents.free(), 25u);
}

TEST(ExtentAllocatorTest, OfNothingThereIsNothing) {
  auto extents = extent_allocator{0};
  EXPECT_EQ(extents.take(1), std::nullopt);
  EXPECT_TRUE(extents.holes().empty());
}

TEST(ExtentAllocatorTest, NeighbouringHolesBecomeOne) {
  auto extents = extent_allocator{30};
  for (auto i = 0; i < 3; ++i)
    EXPECT_TRUE(extents.take(10));
  extents.give_back(0, 10);
  extents.give_back(20, 10);
  EXPECT_EQ(extents.holes().size(), 2u);
  extents.give_back(10, 10);
  EXPECT_EQ(extents.holes().size(), 1u);
  EXPECT_EQ(extents.take(30), 0u);
}

TEST(ExtentAllocatorTest, AgreesWithAMapOfBytes) {
  for (auto seed = uint64_t{1}; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto random = std::mt19937_64{seed};
    auto extents = extent_allocator{200};
    auto taken = std::map<uint64_t, uint64_t>{};
    auto used = std::vector<bool>(200);
    for (auto step = 0; step < 3000; ++step) {
      if (random() % 2 == 0 && !taken.empty()) {
        const auto at = std::next(taken.begin(), static_cast<ptrdiff_t>(random() % taken.size()));
        extents.give_back(at->first, at->second);
        std::fill_n(used.begin() + static_cast<ptrdiff_t>(at->first), at->second, false);
        taken.erase(at);
      } else {
        const auto bytes = 1 + random() % 40;
        auto longest = uint64_t{0};
        for (auto i = size_t{0}, run = size_t{0}; i < used.size(); ++i) {
          run = used[i] ? 0 : run + 1;
          longest = std::max<uint64_t>(longest, run);
        }
        const auto offset = extents.take(bytes);
        ASSERT_EQ(offset.has_value(), longest >= bytes);
        if (!offset)
          continue;
        for (auto i = *offset; i < *offset + bytes; ++i) {
          ASSERT_FALSE(used[i]) << "given out twice";
          used[i] = true;
        }
        taken[*offset] = bytes;
      }
      ASSERT_EQ(extents.free(), static_cast<uint64_t>(std::count(used.begin(), used.end(), false)));
    }
  }
}

} // namespace
} // namespace hicache
