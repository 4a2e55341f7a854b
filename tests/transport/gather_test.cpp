#include "transport/gather.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace hicache {
namespace {

constexpr auto largest = std::numeric_limits<int64_t>::max();

TEST(GatherTest, AnOfferHoldsTheRanksValuesInItsOwnSlots) {
  EXPECT_EQ(gather_offer(1, 3, std::vector<int64_t>{-4, 9}),
            (std::vector<int64_t>{largest, largest, -4, 9, largest, largest}));
  EXPECT_TRUE(gather_offer(0, 3, {}).empty());
}

TEST(GatherTest, TheMinimumOfAllOffersIsEveryonesValues) {
  const auto values = std::vector<std::vector<int64_t>>{
    {0, -1, largest}, {std::numeric_limits<int64_t>::min(), 5, 6}, {7, 7, 7}};
  auto minimum = gather_offer(0, 3, values[0]);
  for (uint32_t rank = 1; rank < 3; ++rank) {
    const auto offer = gather_offer(rank, 3, values[rank]);
    std::transform(minimum.begin(), minimum.end(), offer.begin(), minimum.begin(),
                   [](int64_t x, int64_t y) { return std::min(x, y); });
  }
  const auto rows = gathered(3, minimum);
  ASSERT_EQ(rows.size(), 3u);
  for (size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(std::vector<int64_t>(rows[rank].begin(), rows[rank].end()), values[rank]);
}

} // namespace
} // namespace hicache
