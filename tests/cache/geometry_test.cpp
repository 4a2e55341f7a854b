#include "cache/geometry.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

using namespace hicache;

namespace {

constexpr auto halves = {kv_half::key, kv_half::value};

const auto small = pool_shape{
  .layers = 3, .kv_heads = 2, .head_dim = 4, .v_head_dim = 3, .element_bytes = 2, .page_size = 4};

/// One token's row: half, layer, page, token in page.
using row_name = std::tuple<kv_half, uint32_t, page_index, uint32_t>;

/// All rows in the order in which the layout's definition nests its dimensions, with their offsets:
/// the slow definition.
std::map<row_name, uint64_t> define(const pool_geometry& geometry) {
  const auto& shape = geometry.shape();
  auto rows = std::vector<row_name>{};
  for (const auto half : halves)
    for (auto layer = 0u; layer < shape.layers; ++layer)
      for (auto page = 0u; page < geometry.pages(); ++page)
        for (auto token = 0u; token < shape.page_size; ++token)
          rows.emplace_back(half, layer, page, token);
  const auto rank = [&](const row_name& row) {
    const auto [half, layer, page, token] = row;
    const auto h = static_cast<uint32_t>(half);
    switch (geometry.layout()) {
      case host_layout::layer_first:
        return std::array{h, layer, page, token};
      case host_layout::page_first:
        return std::array{page, h, token, layer};
      default:
        return std::array{page, h, layer, token};
    }
  };
  std::sort(rows.begin(), rows.end(),
            [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  auto offsets = std::map<row_name, uint64_t>{};
  auto offset = uint64_t{0};
  for (const auto& row : rows) {
    offsets[row] = offset;
    offset += geometry.row_bytes(std::get<0>(row));
  }
  return offsets;
}

/// What lies at each byte of a page object.
std::vector<std::tuple<kv_half, uint32_t, uint32_t, uint64_t>>
object_order(const pool_geometry& geometry, page_index page) {
  auto at = std::map<uint64_t, std::tuple<kv_half, uint32_t, uint32_t, uint64_t>>{};
  for (const auto half : halves)
    for (auto layer = 0u; layer < geometry.shape().layers; ++layer) {
      const auto run = geometry.rows(layer, half, page);
      for (auto token = 0u; token < run.rows; ++token)
        for (auto byte = uint64_t{0}; byte < run.row_bytes; ++byte)
          at[run.offset + token * run.stride + byte] = {half, layer, token, byte};
    }
  auto order = std::vector<std::tuple<kv_half, uint32_t, uint32_t, uint64_t>>{};
  for (const auto& run : geometry.object_runs(page))
    for (auto i = uint64_t{0}; i < run.length; ++i)
      order.push_back(at.at(run.offset + i));
  return order;
}

} // namespace

class GeometryOf : public testing::TestWithParam<host_layout> {};

TEST_P(GeometryOf, RowsLieWhereTheDefinitionSays) {
  const auto geometry = pool_geometry{small, GetParam(), 5};
  for (const auto& [row, offset] : define(geometry)) {
    const auto [half, layer, page, token] = row;
    const auto run = geometry.rows(layer, half, page);
    EXPECT_EQ(run.rows, small.page_size);
    EXPECT_EQ(run.row_bytes, geometry.row_bytes(half));
    EXPECT_EQ(run.offset + token * run.stride, offset);
  }
}

TEST_P(GeometryOf, RowsCoverThePoolWithoutOverlap) {
  const auto geometry = pool_geometry{small, GetParam(), 5};
  auto users = std::vector<int>(geometry.total_bytes());
  for (const auto half : halves)
    for (auto layer = 0u; layer < small.layers; ++layer)
      for (auto page = 0u; page < geometry.pages(); ++page) {
        const auto run = geometry.rows(layer, half, page);
        for (auto token = uint64_t{0}; token < run.rows; ++token)
          for (auto byte = uint64_t{0}; byte < run.row_bytes; ++byte)
            ++users.at(run.offset + token * run.stride + byte);
      }
  EXPECT_EQ(std::count(users.begin(), users.end(), 1), static_cast<ptrdiff_t>(users.size()));
}

TEST_P(GeometryOf, ObjectsHoldThePageOnce) {
  const auto geometry = pool_geometry{small, GetParam(), 5};
  for (auto page = 0u; page < geometry.pages(); ++page) {
    auto order = object_order(geometry, page);
    EXPECT_EQ(order.size(), geometry.page_bytes());
    std::sort(order.begin(), order.end());
    EXPECT_EQ(std::unique(order.begin(), order.end()), order.end());
  }
  EXPECT_EQ(geometry.object_runs(1).size(), GetParam() == host_layout::layer_first ? 6 : 1);
}

TEST_P(GeometryOf, NameIsParsed) {
  EXPECT_EQ(parse_host_layout(to_string(GetParam())), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Layouts, GeometryOf,
                         testing::Values(host_layout::layer_first, host_layout::page_first,
                                         host_layout::page_first_direct),
                         [](const auto& layout) { return to_string(layout.param); });

TEST(Geometry, LayerFirstAndPageFirstDirectExchangeObjects) {
  const auto layer_first = pool_geometry{small, host_layout::layer_first, 4};
  const auto direct = pool_geometry{small, host_layout::page_first_direct, 9};
  const auto page_first = pool_geometry{small, host_layout::page_first, 4};
  EXPECT_EQ(object_order(layer_first, 1), object_order(direct, 7));
  EXPECT_EQ(layer_first.object_fingerprint(), direct.object_fingerprint());
  EXPECT_NE(object_order(layer_first, 1), object_order(page_first, 1));
  EXPECT_NE(layer_first.object_fingerprint(), page_first.object_fingerprint());
}

TEST(Geometry, SizesFollowTheShape) {
  const auto geometry = pool_geometry{small, host_layout::page_first, 5};
  EXPECT_EQ(geometry.row_bytes(kv_half::key), 16);
  EXPECT_EQ(geometry.row_bytes(kv_half::value), 12);
  EXPECT_EQ(geometry.page_bytes(), 3 * 4 * 28);
  EXPECT_EQ(geometry.total_bytes(), 5 * geometry.page_bytes());
}

TEST(Geometry, UnknownLayoutNamesTheAllowedOnes) {
  const auto layout = parse_host_layout("rows_first");
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code, ec::invalid_argument);
  EXPECT_NE(layout.error().detail.find("page_first_direct"), std::string::npos);
}
