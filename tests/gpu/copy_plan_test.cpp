#include "gpu/copy_plan.hpp"

#include <gtest/gtest.h>

namespace hicache {
namespace {

// One K row has 8 bytes, one V row 4; a page has 2 tokens and 3 layers, so 72 bytes.
constexpr auto shape = pool_shape{
  .layers = 3, .kv_heads = 1, .head_dim = 4, .v_head_dim = 2, .element_bytes = 2, .page_size = 2};

std::vector<row_copy> plan(host_layout layout, uint32_t layer, std::vector<page_index> device_pages,
                           std::vector<page_index> host_pages) {
  auto copies = std::vector<row_copy>{{.rows = 77}};
  plan_layer_copy(pool_geometry{shape, host_layout::layer_first, 10},
                  pool_geometry{shape, layout, 20}, layer, device_pages, host_pages, copies);
  return copies;
}

TEST(CopyPlanTest, NoPagesNeedNoCopies) {
  EXPECT_TRUE(plan(host_layout::page_first, 0, {}, {}).empty());
}

TEST(CopyPlanTest, JoinsNeighbouringPagesOfLayerFirstPools) {
  // Pages 2,3 -> 7,8 join; 5 -> 9 follows on the host side alone.
  const auto copies = plan(host_layout::layer_first, 1, {2, 3, 5}, {7, 8, 9});
  const auto keys = 3u * 10 * 16;
  const auto host_keys = 3u * 20 * 16;
  const auto expected = std::vector<row_copy>{
    {10 * 16 + 2 * 16, 32, 20 * 16 + 7 * 16, 32, 32, 1},
    {10 * 16 + 5 * 16, 16, 20 * 16 + 9 * 16, 16, 16, 1},
    {keys + 10 * 8 + 2 * 8, 16, host_keys + 20 * 8 + 7 * 8, 16, 16, 1},
    {keys + 10 * 8 + 5 * 8, 8, host_keys + 20 * 8 + 9 * 8, 8, 8, 1},
  };
  EXPECT_EQ(copies, expected);
}

TEST(CopyPlanTest, CopiesALayerOfAPageInOnePieceFromPageFirstDirect) {
  const auto copies = plan(host_layout::page_first_direct, 2, {1, 2}, {4, 5});
  ASSERT_EQ(copies.size(), 4u);
  EXPECT_EQ(copies[0], (row_copy{2 * 160 + 16, 16, 4 * 72 + 2 * 16, 16, 16, 1}));
  EXPECT_EQ(copies[2], (row_copy{480 + 2 * 80 + 8, 8, 4 * 72 + 48 + 2 * 8, 8, 8, 1}));
}

TEST(CopyPlanTest, StridesOverTheLayersOfPageFirst) {
  const auto copies = plan(host_layout::page_first, 2, {1}, {4});
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0], (row_copy{2 * 160 + 16, 8, 4 * 72 + 2 * 8, 24, 8, 2}));
  EXPECT_EQ(copies[1], (row_copy{480 + 2 * 80 + 8, 4, 4 * 72 + 48 + 2 * 4, 12, 4, 2}));
}

} // namespace
} // namespace hicache
