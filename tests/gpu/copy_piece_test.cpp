#include "gpu/copy_piece.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace hicache {
namespace {

copy_strip make_strip(uint64_t row_bytes, uint32_t rows) {
  return {.device_address = 1000,
          .device_page_stride = 1'000'000,
          .device_row_stride = 20'000,
          .host_address = 7,
          .host_page_stride = 3'000'000,
          .host_row_stride = 15'000,
          .row_bytes = row_bytes,
          .rows = rows,
          .word_bytes = 1};
}

TEST(CopyPieceTest, CutsRowsIntoPiecesOfAtMostFourKibibytes) {
  EXPECT_EQ(pieces_per_row(make_strip(1, 1)), 1u);
  EXPECT_EQ(pieces_per_row(make_strip(4096, 1)), 1u);
  EXPECT_EQ(pieces_per_row(make_strip(4097, 1)), 2u);
  EXPECT_EQ(piece_count(make_strip(12'288, 5), 7), 3u * 5 * 7);
  EXPECT_EQ(piece_count(make_strip(12'288, 5), 0), 0u);
}

TEST(CopyPieceTest, FindsPagesRowsAndPiecesInOrder) {
  const auto l1_pages = std::vector<page_index>{5, 2, 9};
  const auto l2_pages = std::vector<page_index>{1, 8, 3};
  for (const auto row_bytes : {1u, 132u, 4095u, 4096u, 4097u, 9000u})
    for (const auto rows : {1u, 3u}) {
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(row_bytes));
      const auto strip = make_strip(row_bytes, rows);
      auto index = uint64_t{0};
      for (auto page = size_t{0}; page < l1_pages.size(); ++page)
        for (auto row = uint64_t{0}; row < rows; ++row)
          for (auto begin = uint64_t{0}; begin < row_bytes; begin += 4096, ++index) {
            const auto piece = find_piece(strip, l1_pages.data(), l2_pages.data(), index);
            EXPECT_EQ(piece.device_address,
                      1000 + l1_pages[page] * 1'000'000 + row * 20'000 + begin);
            EXPECT_EQ(piece.host_address, 7 + l2_pages[page] * 3'000'000 + row * 15'000 + begin);
            EXPECT_EQ(piece.bytes, std::min<uint64_t>(4096, row_bytes - begin));
          }
      EXPECT_EQ(index, piece_count(strip, l1_pages.size()));
    }
}

TEST(CopyPieceTest, ReachesPagesBeyondFourGibibytes) {
  const auto strip = copy_strip{.device_address = uint64_t{1} << 40,
                                .device_page_stride = uint64_t{1} << 23,
                                .device_row_stride = 4096,
                                .host_address = uint64_t{1} << 41,
                                .host_page_stride = uint64_t{1} << 23,
                                .host_row_stride = 4096,
                                .row_bytes = 4096,
                                .rows = 2,
                                .word_bytes = 16};
  const auto pages = std::vector<page_index>{0x7fff'ffff};
  const auto piece = find_piece(strip, pages.data(), pages.data(), 1);
  EXPECT_EQ(piece.device_address, (uint64_t{1} << 40) + (uint64_t{0x7fff'ffff} << 23) + 4096);
  EXPECT_EQ(piece.host_address, (uint64_t{1} << 41) + (uint64_t{0x7fff'ffff} << 23) + 4096);
}

} // namespace
} // namespace hicache
