#include "cache/copy_strips.hpp"
#include "hicache/geometry.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <vector>

using namespace hicache;
using testing::HasSubstr;

namespace {

constexpr auto all_layouts = {host_layout::layer_first, host_layout::page_first,
                              host_layout::page_first_direct, host_layout::page_head};

constexpr auto small = pool_shape{
  .layers = 3, .kv_heads = 2, .head_dim = 4, .v_head_dim = 3, .element_bytes = 2, .page_size = 4};

constexpr auto four_heads = pool_shape{
  .layers = 3, .kv_heads = 4, .head_dim = 4, .v_head_dim = 3, .element_bytes = 2, .page_size = 4};

constexpr auto latent_alone = pool_shape{.attention = attention_kind::mla,
                                         .layers = 3,
                                         .kv_heads = 1,
                                         .head_dim = 9,
                                         .element_bytes = 2,
                                         .page_size = 4};
constexpr auto latent_and_key = pool_shape{.attention = attention_kind::nsa,
                                           .layers = 3,
                                           .kv_heads = 1,
                                           .head_dim = 9,
                                           .element_bytes = 1,
                                           .page_size = 4,
                                           .index_key_bytes = 13};

/// One head of one token's row: part, layer, page, token in page, head.
using row_name = std::tuple<kv_part, uint32_t, page_index, uint32_t, uint32_t>;

uint32_t heads_of(const pool_shape& shape) {
  return shape.attention == attention_kind::mha ? shape.kv_heads : 1;
}

/// From the definition of the parts.
uint64_t head_bytes(const pool_shape& shape, kv_part part) {
  switch (part) {
    case kv_part::key:
    case kv_part::latent:
      return uint64_t{shape.head_dim} * shape.element_bytes;
    case kv_part::value:
      return uint64_t{shape.v_head_dim} * shape.element_bytes;
    case kv_part::index_key:
      break;
  }
  return shape.index_key_bytes;
}

/// Calls `visit` with every row of one page.
template <class Visit>
void for_each_row(const pool_geometry& geometry, page_index page, Visit visit) {
  for (const auto part : geometry.parts())
    for (auto layer = 0u; layer < geometry.shape().layers; ++layer)
      for (auto token = 0u; token < geometry.shape().page_size; ++token)
        for (auto head = 0u; head < heads_of(geometry.shape()); ++head)
          visit(row_name{part, layer, page, token, head});
}

/// All rows in the order in which the layout's definition nests its dimensions, with their offsets:
/// the slow definition.
std::map<row_name, uint64_t> define(const pool_geometry& geometry) {
  auto rows = std::vector<row_name>{};
  for (auto page = 0u; page < geometry.pages(); ++page)
    for_each_row(geometry, page, [&](const row_name& row) { rows.push_back(row); });
  const auto rank = [&](const row_name& row) {
    const auto [kind, layer, page, token, head] = row;
    const auto part = static_cast<uint32_t>(kind);
    switch (geometry.layout()) {
      case host_layout::layer_first:
        return std::array{part, layer, page, token, head};
      case host_layout::page_first:
        return std::array{page, part, token, layer, head};
      case host_layout::page_first_direct:
        return std::array{page, part, layer, token, head};
      case host_layout::page_head:
        break;
    }
    return std::array{page, head, part, layer, token};
  };
  std::ranges::sort(rows, [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  auto offsets = std::map<row_name, uint64_t>{};
  auto offset = uint64_t{0};
  for (const auto& row : rows) {
    offsets[row] = offset;
    offset += head_bytes(geometry.shape(), std::get<0>(row));
  }
  return offsets;
}

/// Where pool_geometry puts a head of a token's row.
uint64_t offset_of(const pool_geometry& geometry, const row_name& row) {
  const auto [part, layer, page, token, head] = row;
  const auto columns = geometry.columns(part);
  const auto run = geometry.rows(layer, part, page, columns == 1 ? 0 : head);
  return run.offset + token * run.stride
         + (columns == 1 ? head * head_bytes(geometry.shape(), part) : 0);
}

/// A byte of an object: part, layer, token, head, byte.
using byte_name = std::tuple<kv_part, uint32_t, uint32_t, uint32_t, uint64_t>;

/// What lies at each byte of an object.
std::vector<byte_name> object_order(const pool_geometry& geometry, page_index page,
                                    head_range heads) {
  auto at = std::map<uint64_t, byte_name>{};
  for_each_row(geometry, page, [&](const row_name& row) {
    const auto [part, layer, same_page, token, head] = row;
    for (auto byte = uint64_t{0}; byte < head_bytes(geometry.shape(), part); ++byte)
      at[offset_of(geometry, row) + byte] = {part, layer, token, head, byte};
  });
  auto order = std::vector<byte_name>{};
  for (const auto& run : geometry.object_runs(page, heads))
    for (auto i = uint64_t{0}; i < run.length; ++i)
      order.push_back(at.at(run.offset + i));
  return order;
}

/// Of all heads of a page.
std::vector<byte_name> object_order(const pool_geometry& geometry, page_index page) {
  return object_order(geometry, page, geometry.all_heads());
}

} // namespace

class GeometryOf : public testing::TestWithParam<std::tuple<host_layout, attention_kind>> {
protected:
  static pool_shape shape() {
    switch (std::get<1>(GetParam())) {
      case attention_kind::mha:
        return small;
      case attention_kind::mla:
        return latent_alone;
      case attention_kind::nsa:
        break;
    }
    return latent_and_key;
  }

  pool_geometry geometry_{shape(), std::get<0>(GetParam()), 5};
};

TEST_P(GeometryOf, RowsLieWhereTheDefinitionSays) {
  for (const auto& [row, offset] : define(geometry_)) {
    const auto [part, layer, page, token, head] = row;
    EXPECT_EQ(offset_of(geometry_, row), offset);
    const auto run = geometry_.rows(layer, part, page);
    EXPECT_EQ(run.rows, shape().page_size);
    EXPECT_EQ(run.row_bytes * geometry_.columns(part), geometry_.row_bytes(part));
    EXPECT_EQ(geometry_.row_bytes(part), head_bytes(shape(), part) * heads_of(shape()));
  }
}

TEST_P(GeometryOf, RowsCoverThePoolWithoutOverlap) {
  auto users = std::vector<int>(geometry_.total_bytes());
  for (auto page = 0u; page < geometry_.pages(); ++page)
    for_each_row(geometry_, page, [&](const row_name& row) {
      for (auto byte = uint64_t{0}; byte < head_bytes(shape(), std::get<0>(row)); ++byte)
        ++users.at(offset_of(geometry_, row) + byte);
    });
  EXPECT_EQ(std::ranges::count(users, 1), static_cast<ptrdiff_t>(users.size()));
}

TEST_P(GeometryOf, PagesOfAPartLieAStrideApart) {
  for (const auto part : geometry_.parts())
    for (auto column = 0u; column < geometry_.columns(part); ++column)
      EXPECT_EQ(geometry_.rows(1, part, 3, column).offset,
                geometry_.rows(1, part, 2, column).offset + geometry_.page_stride(part));
}

TEST_P(GeometryOf, ObjectsHoldThePageOnce) {
  for (auto page = 0u; page < geometry_.pages(); ++page) {
    auto order = object_order(geometry_, page);
    EXPECT_EQ(order.size(), geometry_.page_bytes());
    std::ranges::sort(order);
    EXPECT_EQ(std::unique(order.begin(), order.end()), order.end());
  }
  const auto runs
    = geometry_.layout() == host_layout::layer_first ? geometry_.parts().size() * 3 : 1;
  EXPECT_EQ(geometry_.object_runs(1, geometry_.all_heads()).size(), runs);
}

TEST_P(GeometryOf, NamesAreParsed) {
  EXPECT_EQ(parse_host_layout(to_string(std::get<0>(GetParam()))), std::get<0>(GetParam()));
  EXPECT_EQ(parse_attention_kind(to_string(std::get<1>(GetParam()))), std::get<1>(GetParam()));
}

/// Strips move every byte of a page to where the same byte of the same row lies on the other side,
/// and the rows that they consist of are disjoint.
TEST_P(GeometryOf, StripsPairTheRowsOfBothSides) {
  const auto l1 = pool_geometry{shape(), host_layout::layer_first, 7};
  constexpr auto l1_address = uint64_t{1} << 32;
  constexpr auto l2_address = uint64_t{1} << 40;
  const auto strips = make_copy_strips(device_layers::of(l1, l1_address), geometry_, l2_address);
  ASSERT_EQ(strips.size() % shape().layers, 0u);
  const auto per_layer = strips.size() / shape().layers;
  auto pairs = std::map<uint64_t, std::pair<uint64_t, uint32_t>>{};
  for (auto i = size_t{0}; i < strips.size(); ++i) {
    const auto& strip = strips[i];
    for (auto row = uint64_t{0}; row < strip.rows; ++row)
      for (auto byte = uint64_t{0}; byte < strip.row_bytes; ++byte)
        pairs[strip.device_address + 5 * strip.device_page_stride + row * strip.device_row_stride
              + byte - l1_address]
          = {strip.host_address + 2 * strip.host_page_stride + row * strip.host_row_stride + byte
               - l2_address,
             static_cast<uint32_t>(i / per_layer)};
  }
  EXPECT_EQ(pairs.size(), geometry_.page_bytes());
  for_each_row(geometry_, 2, [&](row_name row) {
    const auto host = offset_of(geometry_, row);
    std::get<2>(row) = 5;
    for (auto byte = uint64_t{0}; byte < head_bytes(shape(), std::get<0>(row)); ++byte)
      EXPECT_EQ(pairs.at(offset_of(l1, row) + byte), std::pair(host + byte, std::get<1>(row)));
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, GeometryOf,
                         testing::Combine(testing::ValuesIn(all_layouts),
                                          testing::Values(attention_kind::mha, attention_kind::mla,
                                                          attention_kind::nsa)),
                         [](const auto& chosen) {
                           return std::string{to_string(std::get<0>(chosen.param))} + "_"
                                  + to_string(std::get<1>(chosen.param));
                         });

TEST(Geometry, LayerFirstAndPageFirstDirectExchangeObjects) {
  for (const auto& shape : {small, latent_and_key}) {
    const auto layer_first = pool_geometry{shape, host_layout::layer_first, 4};
    const auto direct = pool_geometry{shape, host_layout::page_first_direct, 9};
    EXPECT_EQ(object_order(layer_first, 1), object_order(direct, 7));
    EXPECT_EQ(layer_first.object_fingerprint(1), direct.object_fingerprint(1));
  }
}

TEST(Geometry, ObjectsOfOtherOrdersHaveOtherFingerprints) {
  const auto direct = pool_geometry{small, host_layout::page_first_direct, 9};
  for (const auto layout : {host_layout::page_first, host_layout::page_head}) {
    const auto other = pool_geometry{small, layout, 9};
    EXPECT_NE(object_order(direct, 1), object_order(other, 1));
    EXPECT_NE(direct.object_fingerprint(2), other.object_fingerprint(2));
  }
}

/// The order of a page's object says what that of its groups is, and the shards of ranks are cut
/// out of it.
TEST(ObjectGroups, HoldTheirHeadsInTheOrderOfThePage) {
  for (const auto layout : all_layouts)
    for (const auto heads : {1u, 2u, 4u}) {
      SCOPED_TRACE(std::string{to_string(layout)} + ", groups of " + std::to_string(heads));
      const auto geometry = pool_geometry{four_heads, layout, 3};
      const auto page = object_order(geometry, 2);
      auto reassembled = std::vector<byte_name>{};
      for (const auto& group : geometry.head_groups(0, heads)) {
        auto expected = std::vector<byte_name>{};
        std::ranges::copy_if(page, std::back_inserter(expected), [&](const byte_name& byte) {
          return std::get<3>(byte) - group.heads.first < heads;
        });
        const auto object = object_order(geometry, 2, group.heads);
        EXPECT_EQ(object, expected);
        EXPECT_EQ(object.size(), geometry.object_bytes(heads));
        reassembled.insert(reassembled.end(), object.begin(), object.end());
      }
      EXPECT_TRUE(std::ranges::is_permutation(reassembled, page));
    }
}

TEST(ObjectGroups, AreTheSameHoweverTheHeadsAreSplitOverRanks) {
  for (const auto layout : all_layouts)
    for (const auto ranks : {1u, 2u, 4u})
      for (auto heads = 1u; heads <= 4 / ranks; heads *= 2) {
        SCOPED_TRACE(std::string{to_string(layout)} + ", " + std::to_string(ranks)
                     + " ranks, groups of " + std::to_string(heads));
        const auto model = pool_geometry{four_heads, layout, 3};
        auto shape = four_heads;
        shape.kv_heads /= ranks;
        const auto part = pool_geometry{shape, layout, 5};
        auto groups = std::vector<head_group>{};
        for (auto rank = 0u; rank < ranks; ++rank)
          for (const auto& group : part.head_groups(rank, heads)) {
            auto object = object_order(part, 4, group.heads);
            for (auto& byte : object)
              std::get<3>(byte) += rank * shape.kv_heads;
            auto whole = group;
            whole.heads.first += rank * shape.kv_heads;
            EXPECT_EQ(object, object_order(model, 1, whole.heads));
            groups.push_back(whole);
          }
        EXPECT_EQ(groups, model.head_groups(0, heads));
      }
}

TEST(ObjectGroups, OfReplicasAreThoseOfTheirHead) {
  for (const auto layout : all_layouts)
    for (const auto ranks : {4u, 8u, 16u}) {
      SCOPED_TRACE(std::string{to_string(layout)} + ", " + std::to_string(ranks) + " ranks");
      const auto split = split_heads(four_heads.kv_heads, ranks).value();
      auto shape = four_heads;
      shape.kv_heads = split.heads;
      const auto model = pool_geometry{four_heads, layout, 3};
      const auto part = pool_geometry{shape, layout, 5};
      for (auto rank = 0u; rank < ranks; ++rank) {
        const auto head = split.part_of(rank);
        EXPECT_EQ(head, rank * four_heads.kv_heads / ranks) << "as engines replicate";
        EXPECT_EQ(part.head_groups(head, 1),
                  (std::vector<head_group>{{{0, 1}, model.head_groups(0, 1)[head].name}}));
        auto object = object_order(part, 4);
        for (auto& byte : object)
          std::get<3>(byte) += head;
        EXPECT_EQ(object, object_order(model, 1, {head, 1}));
      }
    }
}

TEST(HeadSplit, GivesEachRankWholeHeadsOrAReplicaOfOne) {
  EXPECT_EQ(split_heads(8, 1), (head_split{8, 1}));
  EXPECT_EQ(split_heads(8, 4), (head_split{2, 1}));
  EXPECT_EQ(split_heads(8, 8), (head_split{1, 1}));
  EXPECT_EQ(split_heads(8, 16), (head_split{1, 2}));
  EXPECT_EQ(split_heads(2, 8), (head_split{1, 4}));
  EXPECT_EQ(split_heads(1, 3), (head_split{1, 3})) << "MQA, and a latent";
  EXPECT_EQ(split_heads(6, 3), (head_split{2, 1}));
  for (const auto& [heads, ranks] : {std::pair{3u, 2u}, {2u, 3u}, {8u, 12u}, {12u, 8u}})
    EXPECT_FALSE(split_heads(heads, ranks)) << heads << " on " << ranks;
}

TEST(ObjectGroups, AreNamedByTheModelsHeads) {
  auto shape = four_heads;
  shape.kv_heads = 2;
  const auto geometry = pool_geometry{shape, host_layout::page_first, 2};
  EXPECT_EQ(geometry.head_groups(3, 1),
            (std::vector<head_group>{{{0, 1}, "heads 6+1"}, {{1, 1}, "heads 7+1"}}));
  EXPECT_EQ(geometry.head_groups(3, 2), (std::vector<head_group>{{{0, 2}, "heads 6+2"}}));
  const auto latent = pool_geometry{latent_and_key, host_layout::page_first, 2};
  EXPECT_EQ(latent.head_groups(3, 1), (std::vector<head_group>{{{0, 1}, "latent"}}));
}

TEST(ObjectGroups, AreContiguousWhereTheLayoutLetsThem) {
  const auto runs = [](host_layout layout, uint32_t heads) {
    return pool_geometry{four_heads, layout, 3}.object_runs(1, {4 - heads, heads}).size();
  };
  for (const auto heads : {1u, 2u, 4u})
    EXPECT_EQ(runs(host_layout::page_head, heads), 1u);
  EXPECT_EQ(runs(host_layout::page_first, 4), 1u);
  EXPECT_EQ(runs(host_layout::page_first_direct, 4), 1u);
  EXPECT_EQ(runs(host_layout::layer_first, 4), 2u * 3);
  for (const auto layout :
       {host_layout::layer_first, host_layout::page_first, host_layout::page_first_direct})
    EXPECT_EQ(runs(layout, 2), 2u * 3 * 4) << to_string(layout);
}

TEST(ObjectGroups, OfOtherSizesOrModelsHaveOtherFingerprints) {
  for (const auto layout : all_layouts) {
    const auto geometry = pool_geometry{four_heads, layout, 3};
    EXPECT_NE(geometry.object_fingerprint(1), geometry.object_fingerprint(2));
    auto shape = four_heads;
    shape.kv_heads = 8;
    EXPECT_NE(geometry.object_fingerprint(1),
              (pool_geometry{shape, layout, 3}.object_fingerprint(1)));
    shape = four_heads;
    shape.v_head_dim = 4;
    EXPECT_NE(geometry.object_fingerprint(1),
              (pool_geometry{shape, layout, 3}.object_fingerprint(1)));
  }
}

TEST(ObjectGroups, OfOneHeadAreAlikeInAllLayoutsButPageFirst) {
  const auto direct = pool_geometry{four_heads, host_layout::page_first_direct, 3};
  for (const auto layout : all_layouts) {
    const auto geometry = pool_geometry{four_heads, layout, 3};
    const auto alike = layout != host_layout::page_first;
    EXPECT_EQ(object_order(geometry, 1, {2, 1}) == object_order(direct, 1, {2, 1}), alike);
    EXPECT_EQ(geometry.object_fingerprint(1) == direct.object_fingerprint(1), alike);
  }
}

TEST(Geometry, AHeadOfAPageHeadObjectIsOneRun) {
  const auto geometry = pool_geometry{small, host_layout::page_head, 3};
  const auto order = object_order(geometry, 1);
  const auto half = order.size() / 2;
  for (auto i = size_t{0}; i < order.size(); ++i)
    EXPECT_EQ(std::get<3>(order[i]), i < half ? 0u : 1u);
}

TEST(Geometry, SizesFollowTheShape) {
  const auto geometry = pool_geometry{small, host_layout::page_first, 5};
  EXPECT_EQ(geometry.row_bytes(kv_part::key), 16);
  EXPECT_EQ(geometry.row_bytes(kv_part::value), 12);
  EXPECT_EQ(geometry.page_bytes(), 3 * 4 * 28);
  EXPECT_EQ(geometry.total_bytes(), 5 * geometry.page_bytes());
  const auto sparse = pool_geometry{latent_and_key, host_layout::page_first, 5};
  EXPECT_EQ(sparse.row_bytes(kv_part::latent), 9);
  EXPECT_EQ(sparse.row_bytes(kv_part::index_key), 13);
  EXPECT_EQ(sparse.page_bytes(), 3 * 4 * 22);
}

TEST(Geometry, UnknownNamesAreAnsweredWithTheAllowedOnes) {
  const auto layout = parse_host_layout("rows_first");
  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code, ec::invalid_argument);
  EXPECT_THAT(layout.error().detail, HasSubstr("'rows_first' is not a memory layout; expected "
                                               "layer_first, page_first, page_first_direct or "
                                               "page_head"));
  const auto kind = parse_attention_kind("mqa");
  ASSERT_FALSE(kind);
  EXPECT_EQ(kind.error().code, ec::invalid_argument);
  EXPECT_THAT(kind.error().detail,
              HasSubstr("'mqa' is not a kind of attention; expected mha, mla or nsa"));
}

TEST(GeometryDeathTest, RefusesShapesThatDoNotFitTheirAttention) {
  const auto make = [](pool_shape shape) {
    static_cast<void>(pool_geometry{shape, host_layout::page_first, 2});
  };
  auto two_latents = latent_alone;
  two_latents.kv_heads = 2;
  EXPECT_DEATH(make(two_latents), "fits_its_attention");
  auto keyless = latent_and_key;
  keyless.index_key_bytes = 0;
  EXPECT_DEATH(make(keyless), "fits_its_attention");
  auto no_values = small;
  no_values.v_head_dim = 0;
  EXPECT_DEATH(make(no_values), "fits_its_attention");
}

// -- registered pools ---------------------------------------------------------

TEST(DeviceLayers, OfAPoolAreItsRows) {
  const auto pool = pool_geometry{small, host_layout::layer_first, 6};
  const auto layers = device_layers::of(pool, 4096);
  ASSERT_TRUE(layers.check());
  ASSERT_EQ(layers.buffers.size(), 6u);
  EXPECT_EQ(layers.shape, small);
  EXPECT_EQ(layers.pages, 6u);
  EXPECT_EQ(layers.buffers[1], (layer_buffer{4096 + pool.rows(1, kv_part::key, 0).offset, 64, 16}));
  EXPECT_EQ(layers.buffers[5],
            (layer_buffer{4096 + pool.rows(2, kv_part::value, 0).offset, 48, 12}));
}

TEST(DeviceLayers, CheckNamesTheBufferThatIsWrong) {
  const auto good = device_layers::of(pool_geometry{small, host_layout::layer_first, 6}, 4096);
  const auto error_of = [](const device_layers& layers) {
    const auto checked = layers.check();
    EXPECT_FALSE(checked);
    return checked ? std::string{} : checked.error().detail;
  };
  auto layers = good;
  layers.buffers.pop_back();
  EXPECT_THAT(error_of(layers), HasSubstr("has 5 buffers; expected 6"));
  layers = good;
  layers.buffers[4].address = 0;
  EXPECT_THAT(error_of(layers), HasSubstr("value buffer of layer 1"));
  layers = good;
  layers.buffers[2].token_stride = 15;
  EXPECT_THAT(error_of(layers), HasSubstr("key buffer of layer 2"));
  layers = good;
  layers.buffers[0].page_stride = 63;
  EXPECT_THAT(error_of(layers), HasSubstr("rows of 16 bytes overlap"));
  layers = good;
  layers.pages = 1;
  EXPECT_THAT(error_of(layers), HasSubstr("at least two pages"));
  layers = good;
  layers.shape.layers = 0;
  EXPECT_THAT(error_of(layers), HasSubstr("complete shape"));
}

// -- copies -------------------------------------------------------------------

namespace {

// One K row has 8 bytes, one V row 4; a page has 2 tokens and 3 layers, so 72 bytes.
constexpr auto tiny = pool_shape{
  .layers = 3, .kv_heads = 1, .head_dim = 4, .v_head_dim = 2, .element_bytes = 2, .page_size = 2};

constexpr auto l1_start = uint64_t{0x10000};
constexpr auto l2_start = uint64_t{0x40000};

/// The strips of one layer between pools of 10 and 20 pages.
std::vector<copy_strip> strips_of(host_layout layout, uint32_t layer) {
  const auto all = make_copy_strips(
    device_layers::of(pool_geometry{tiny, host_layout::layer_first, 10}, l1_start),
    pool_geometry{tiny, layout, 20}, l2_start);
  return {all.begin() + layer * 2, all.begin() + layer * 2 + 2};
}

std::vector<row_copy> plan(host_layout layout, uint32_t layer, std::vector<page_index> l1_pages,
                           std::vector<page_index> l2_pages) {
  auto copies = std::vector<row_copy>{};
  append_copies(strips_of(layout, layer), l1_pages, l2_pages, copies);
  return copies;
}

} // namespace

TEST(CopyStrips, WordsFitWhateverIsAdded) {
  const auto word_bytes = [](host_layout layout, uint64_t l2_address) {
    return make_copy_strips(
             device_layers::of(pool_geometry{tiny, host_layout::layer_first, 10}, l1_start),
             pool_geometry{tiny, layout, 20}, l2_address)[0]
      .word_bytes;
  };
  // Pages of 16 bytes on both sides; page strides of 72 bytes; rows of 8 bytes; odd memory.
  EXPECT_EQ(word_bytes(host_layout::layer_first, l2_start), 16u);
  EXPECT_EQ(word_bytes(host_layout::page_first_direct, l2_start), 8u);
  EXPECT_EQ(word_bytes(host_layout::page_first, l2_start), 8u);
  EXPECT_EQ(word_bytes(host_layout::page_first, l2_start + 2), 2u);
  EXPECT_EQ(word_bytes(host_layout::page_first, l2_start + 1), 1u);
}

TEST(CopyStrips, APageThatIsContiguousOnBothSidesIsOneRow) {
  const auto direct = strips_of(host_layout::page_first_direct, 2)[0];
  EXPECT_EQ(direct.rows, 1u);
  EXPECT_EQ(direct.row_bytes, 16u);
  const auto strided = strips_of(host_layout::page_first, 2)[0];
  EXPECT_EQ(strided.rows, 2u);
  EXPECT_EQ(strided.row_bytes, 8u);
  EXPECT_EQ(strided.device_row_stride, 8u);
  EXPECT_EQ(strided.host_row_stride, 24u);
}

TEST(CopyStrips, RegisteredGapsKeepRowsApart) {
  auto registered = device_layers::of(pool_geometry{tiny, host_layout::layer_first, 10}, l1_start);
  for (auto& buffer : registered.buffers) {
    buffer.token_stride = 12;
    buffer.page_stride = 100;
  }
  const auto strips
    = make_copy_strips(registered, pool_geometry{tiny, host_layout::page_first_direct, 20}, 8);
  EXPECT_EQ(strips[0].rows, 2u);
  EXPECT_EQ(strips[0].device_page_stride, 100u);
  EXPECT_EQ(strips[0].device_row_stride, 12u);
  EXPECT_EQ(strips[0].host_row_stride, 8u);
  EXPECT_EQ(strips[0].word_bytes, 4u);
}

TEST(CopyStrips, EachHeadOfPageHeadHasItsOwn) {
  const auto strips
    = make_copy_strips(device_layers::of(pool_geometry{small, host_layout::layer_first, 4}, 4096),
                       pool_geometry{small, host_layout::page_head, 4}, 65536);
  ASSERT_EQ(strips.size(), 3u * 2 * 2);
  EXPECT_EQ(strips[1].device_address, strips[0].device_address + 8);
  EXPECT_EQ(strips[1].host_address, strips[0].host_address + 3 * 4 * (8 + 6));
  EXPECT_EQ(strips[1].device_row_stride, 16u);
  EXPECT_EQ(strips[1].host_row_stride, 8u);
}

TEST(AppendCopies, NoPagesNeedNoCopies) {
  EXPECT_TRUE(plan(host_layout::page_first, 0, {}, {}).empty());
}

TEST(AppendCopies, JoinsNeighbouringPagesOfLayerFirstPools) {
  // Pages 2,3 -> 7,8 join; 5 -> 9 follows on the host side alone.
  const auto copies = plan(host_layout::layer_first, 1, {2, 3, 5}, {7, 8, 9});
  const auto keys = l1_start + 3u * 10 * 16;
  const auto host_keys = l2_start + 3u * 20 * 16;
  const auto expected = std::vector<row_copy>{
    {l1_start + 10 * 16 + 2 * 16, 32, l2_start + 20 * 16 + 7 * 16, 32, 32, 1},
    {l1_start + 10 * 16 + 5 * 16, 16, l2_start + 20 * 16 + 9 * 16, 16, 16, 1},
    {keys + 10 * 8 + 2 * 8, 16, host_keys + 20 * 8 + 7 * 8, 16, 16, 1},
    {keys + 10 * 8 + 5 * 8, 8, host_keys + 20 * 8 + 9 * 8, 8, 8, 1},
  };
  EXPECT_EQ(copies, expected);
}

TEST(AppendCopies, CopiesALayerOfAPageInOnePieceFromPageFirstDirect) {
  const auto copies = plan(host_layout::page_first_direct, 2, {1, 2}, {4, 5});
  ASSERT_EQ(copies.size(), 4u);
  EXPECT_EQ(copies[0],
            (row_copy{l1_start + 2 * 160 + 16, 16, l2_start + 4 * 72 + 2 * 16, 16, 16, 1}));
  EXPECT_EQ(copies[2],
            (row_copy{l1_start + 480 + 2 * 80 + 8, 8, l2_start + 4 * 72 + 48 + 2 * 8, 8, 8, 1}));
}

TEST(AppendCopies, StridesOverTheLayersOfPageFirst) {
  const auto copies = plan(host_layout::page_first, 2, {1}, {4});
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0], (row_copy{l1_start + 2 * 160 + 16, 8, l2_start + 4 * 72 + 2 * 8, 24, 8, 2}));
  EXPECT_EQ(copies[1],
            (row_copy{l1_start + 480 + 2 * 80 + 8, 4, l2_start + 4 * 72 + 48 + 2 * 4, 12, 4, 2}));
}

TEST(AppendCopies, GoesOnBehindWhatIsThere) {
  auto copies = std::vector<row_copy>{{.rows = 77}};
  append_copies(strips_of(host_layout::page_first, 0), std::vector<page_index>{1},
                std::vector<page_index>{1}, copies);
  ASSERT_EQ(copies.size(), 3u);
  EXPECT_EQ(copies[0].rows, 77u);
}
