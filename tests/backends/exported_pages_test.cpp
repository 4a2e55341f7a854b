#include "backends/cluster/exported_pages.hpp"
#include "backends/cluster/segment_memory.hpp"
#include "base/page_checksum.hpp"
#include "messages/object_place.hpp"
#include "messages/page_header.hpp"
#include "tests/backends/backend_support.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace hicache::test {
namespace {

constexpr auto fingerprint = uint64_t{7};
constexpr auto object_bytes = uint64_t{100};
constexpr auto objects_per_page = uint64_t{2};
/// A segment of 64 bytes, the headers, and 3 pages of 2 objects.
constexpr auto where = exported_objects{64, 4096, object_bytes, 6};

class ExportedPagesTest : public testing::Test {
protected:
  ExportedPagesTest() {
    exported_.open([this](const segment_slots& gone) {
      reclaimed_.insert(reclaimed_.end(), gone.list.begin(), gone.list.end());
    });
  }

  std::span<std::byte> object(uint64_t number) {
    return std::span{memory_}.subspan(where.objects + number * object_bytes, object_bytes);
  }

  /// Puts the bytes of a key into an object.
  void compute(uint64_t number, uint64_t key) {
    std::ranges::copy(bytes_of(key, object_bytes), object(number).begin());
  }

  std::optional<segment_slot> export_page(uint64_t number, uint64_t key) {
    const auto parts = std::array{std::span<const std::byte>{object(number)}};
    return exported_.export_page(parts, key_of(key), fingerprint);
  }

  uint64_t checksum_of(uint64_t number) {
    return page_checksum(std::array{std::span<const std::byte>{object(number)}});
  }

  /// As a reader sees it.
  bool is_readable(const segment_slot& slot) const {
    auto info = member_info{};
    info.exported = where;
    return is_intact(memory_, slot, *object_offset(info, slot.offset), fingerprint);
  }

  bool has_header(uint64_t number) const {
    const auto bytes = std::span{memory_}.subspan(exported_.header_of(number), slot_object_offset);
    return std::ranges::any_of(bytes, [](std::byte x) { return x != std::byte{0}; });
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(where.objects + 6 * object_bytes);
  exported_pages exported_{memory_, where, objects_per_page};
  std::vector<segment_slot> reclaimed_;
};

TEST_F(ExportedPagesTest, ExportedObjectsAreReadWhereTheyLie) {
  compute(3, 10);
  const auto slot = export_page(3, 10);
  ASSERT_TRUE(slot);
  EXPECT_EQ(slot->what, segment_slot::state::exported);
  EXPECT_EQ(slot->offset, where.headers + 3 * slot_object_offset);
  EXPECT_EQ(slot->length, object_bytes);
  EXPECT_TRUE(exported_.is_exported(*slot));
  EXPECT_TRUE(exported_.is_exported(3, key_of(10)));
  EXPECT_FALSE(exported_.is_exported(3, key_of(11)));
  EXPECT_FALSE(exported_.is_exported(2, key_of(10)));
  EXPECT_TRUE(is_readable(*slot));
}

TEST_F(ExportedPagesTest, OnlyWholeObjectsAreLent) {
  const auto all = std::span<const std::byte>{memory_}.subspan(where.objects);
  const auto find
    = [this](std::span<const std::byte> part) { return exported_.find_object(std::array{part}); };
  EXPECT_EQ(find(all.first(object_bytes)), 0u);
  EXPECT_EQ(find(all.last(object_bytes)), 5u);
  EXPECT_EQ(find(all.subspan(1, object_bytes)), std::nullopt);
  EXPECT_EQ(find(all.first(object_bytes - 1)), std::nullopt);
  EXPECT_EQ(find(all.first(2 * object_bytes)), std::nullopt);
  EXPECT_EQ(find(std::span{memory_}.first(object_bytes)), std::nullopt) << "in the segment";
  const auto elsewhere = page_bytes(object_bytes);
  EXPECT_EQ(find(elsewhere), std::nullopt);
  const auto halves = std::array{all.first(50), all.subspan(50, 50)};
  EXPECT_EQ(exported_.find_object(halves), std::nullopt);
  EXPECT_FALSE(
    exported_.export_page(std::array{all.subspan(1, object_bytes)}, key_of(1), fingerprint));
}

TEST_F(ExportedPagesTest, ReclaimedPagesHaveNoHeaderAndAreToldOf) {
  const auto first = *export_page(2, 10);
  const auto second = *export_page(3, 11);
  const auto other = *export_page(4, 12);
  exported_.reclaim(std::array{page_index{1}});
  EXPECT_FALSE(has_header(2));
  EXPECT_FALSE(has_header(3));
  EXPECT_FALSE(exported_.is_exported(first));
  ASSERT_EQ(reclaimed_.size(), 2u);
  EXPECT_EQ(reclaimed_[0].key, key_of(10));
  EXPECT_EQ(reclaimed_[0].offset, first.offset);
  EXPECT_EQ(reclaimed_[0].generation, first.generation);
  EXPECT_EQ(reclaimed_[1].key, second.key);
  EXPECT_TRUE(is_readable(other));
  exported_.reclaim(std::array{page_index{1}, page_index{0}});
  EXPECT_EQ(reclaimed_.size(), 2u) << "nothing is lent there any more";
}

TEST_F(ExportedPagesTest, APageThatIsReclaimedWhileItIsExportedStaysInvisible) {
  const auto slot = exported_.begin(2, key_of(10));
  ASSERT_TRUE(slot);
  const auto checksum = checksum_of(2);
  EXPECT_FALSE(has_header(2));
  EXPECT_FALSE(exported_.is_exported(*slot));
  exported_.reclaim(std::array{page_index{1}});
  EXPECT_TRUE(reclaimed_.empty()) << "nobody has seen it";
  compute(2, 11);
  EXPECT_FALSE(exported_.finish(*slot, fingerprint, checksum));
  EXPECT_FALSE(has_header(2));
}

TEST_F(ExportedPagesTest, ALaterLendingOfAnObjectEndsTheOneUnderWay) {
  const auto first = *exported_.begin(2, key_of(10));
  exported_.reclaim(std::array{page_index{1}});
  compute(2, 11);
  const auto second = *exported_.begin(2, key_of(11));
  EXPECT_NE(first.generation, second.generation);
  EXPECT_TRUE(exported_.finish(second, fingerprint, checksum_of(2)));
  EXPECT_FALSE(exported_.finish(first, fingerprint, checksum_of(2)));
  EXPECT_TRUE(is_readable(second));
}

TEST_F(ExportedPagesTest, LendingAgainTakesTheOldHeaderBack) {
  const auto first = *export_page(2, 10);
  const auto second = *export_page(2, 10);
  EXPECT_FALSE(exported_.is_exported(first));
  EXPECT_TRUE(exported_.is_exported(second));
  ASSERT_EQ(reclaimed_.size(), 1u);
  EXPECT_EQ(reclaimed_[0].generation, first.generation);
}

TEST_F(ExportedPagesTest, WhatIsTakenBackIsNotToldOf) {
  const auto first = *export_page(2, 10);
  exported_.revoke(first);
  EXPECT_FALSE(has_header(2));
  EXPECT_TRUE(reclaimed_.empty());
  const auto second = *export_page(2, 10);
  exported_.revoke(first);
  EXPECT_TRUE(exported_.is_exported(second)) << "another lending";
}

TEST_F(ExportedPagesTest, SlotsThatAreNoneAreNotLent) {
  auto slot = *export_page(0, 10);
  slot.offset = 0;
  EXPECT_FALSE(exported_.is_exported(slot));
  slot.offset = where.headers + where.count * slot_object_offset;
  EXPECT_FALSE(exported_.is_exported(slot));
  slot.offset = ~uint64_t{0};
  EXPECT_FALSE(exported_.is_exported(slot));
  exported_.revoke(slot);
  EXPECT_TRUE(has_header(0));
}

TEST_F(ExportedPagesTest, DamageIsFoundInWhatIsExportedOnly) {
  const auto slot = *export_page(2, 10);
  EXPECT_FALSE(exported_.is_damaged(slot, fingerprint));
  EXPECT_TRUE(exported_.is_damaged(slot, fingerprint + 1));
  object(2)[5] ^= std::byte{1};
  EXPECT_TRUE(exported_.is_damaged(slot, fingerprint));
  exported_.reclaim(std::array{page_index{1}});
  EXPECT_FALSE(exported_.is_damaged(slot, fingerprint)) << "it is being overwritten";
  const auto begun = *exported_.begin(2, key_of(11));
  EXPECT_FALSE(exported_.is_damaged(begun, fingerprint));
}

TEST_F(ExportedPagesTest, ClosedNothingIsLent) {
  const auto slot = *export_page(2, 10);
  const auto begun = *exported_.begin(4, key_of(12));
  exported_.close();
  EXPECT_FALSE(has_header(2));
  EXPECT_FALSE(exported_.is_exported(slot));
  EXPECT_TRUE(reclaimed_.empty());
  EXPECT_FALSE(exported_.finish(begun, fingerprint, checksum_of(4)));
  EXPECT_FALSE(export_page(2, 10));
  exported_.reclaim(std::array{page_index{0}, page_index{1}, page_index{2}});
  exported_.open([](const segment_slots&) {});
  EXPECT_TRUE(export_page(2, 10));
}

} // namespace
} // namespace hicache::test
