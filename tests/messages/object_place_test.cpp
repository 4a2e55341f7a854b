#include "messages/object_place.hpp"
#include "messages/page_header.hpp"

#include <gtest/gtest.h>

namespace hicache {
namespace {

constexpr auto last = ~uint64_t{0};

/// A segment of 1 KiB, and 4 objects of 100 bytes.
member_info exporter() {
  auto member = member_info{};
  member.exported = {1024, 4096, 100, 4};
  return member;
}

TEST(ObjectPlaceTest, ObjectsOfTheSegmentFollowTheirHeaders) {
  EXPECT_EQ(object_offset(member_info{}, 0), slot_object_offset);
  EXPECT_EQ(object_offset(member_info{}, 1 << 20), (1 << 20) + slot_object_offset);
  EXPECT_EQ(object_offset(exporter(), 960), 960 + slot_object_offset);
}

TEST(ObjectPlaceTest, ExportedObjectsLieSideBySide) {
  EXPECT_EQ(object_offset(exporter(), 1024), 4096u);
  EXPECT_EQ(object_offset(exporter(), 1024 + 3 * slot_object_offset), 4396u);
}

TEST(ObjectPlaceTest, WhatIsNoHeaderHasNoObject) {
  EXPECT_EQ(object_offset(exporter(), 1024 + 4 * slot_object_offset), std::nullopt);
  EXPECT_EQ(object_offset(exporter(), 1024 + 64), std::nullopt);
  EXPECT_EQ(object_offset(exporter(), last), std::nullopt);
  EXPECT_EQ(object_offset(member_info{}, last), std::nullopt);
  EXPECT_EQ(object_offset(member_info{}, disk_offset - 1), disk_offset - 1 + slot_object_offset);
}

TEST(ObjectPlaceTest, APageOnDiskHasNoObjectInMemory) {
  EXPECT_EQ(object_offset(member_info{}, disk_offset), std::nullopt);
  EXPECT_EQ(object_offset(exporter(), disk_offset + 1), std::nullopt);
}

TEST(ObjectPlaceTest, NumbersThatOverflowNameNothing) {
  auto member = member_info{};
  for (const auto& exported :
       {exported_objects{0, last - 10, 100, 2}, exported_objects{0, 0, last, 2},
        exported_objects{0, 0, 0, 1}, exported_objects{last - 64, 0, 1, 1},
        exported_objects{0, 0, 1, last}}) {
    EXPECT_FALSE(is_possible(exported));
    member.exported = exported;
    EXPECT_EQ(object_offset(member, exported.headers), std::nullopt);
  }
  member.exported = {0, last - 200, 100, 2};
  EXPECT_TRUE(is_possible(member.exported));
  EXPECT_EQ(object_offset(member, slot_object_offset), last - 100);
}

TEST(ObjectPlaceTest, APageIsTheBytesOfItsObject) {
  const auto head = uint64_t{1024} + slot_object_offset; // Of the exported object at 4196.
  EXPECT_TRUE(is_part_of_object(exporter(), head, 100, 4196, 100));
  EXPECT_TRUE(is_part_of_object(exporter(), head, 100, 4250, 46));
  EXPECT_TRUE(is_part_of_object(exporter(), head, 100, 4296, 0));
  EXPECT_FALSE(is_part_of_object(exporter(), head, 100, 4195, 1));
  EXPECT_FALSE(is_part_of_object(exporter(), head, 100, 4250, 47));
  EXPECT_FALSE(is_part_of_object(exporter(), head, 100, 4196, last));
  EXPECT_FALSE(is_part_of_object(exporter(), head, 100, last, 1));
  EXPECT_FALSE(is_part_of_object(exporter(), head + 64, 100, 4196, 1)) << "no header";
}

TEST(ObjectPlaceTest, WhoLendsL2AloneHasNoSegment) {
  EXPECT_TRUE(takes_pages(member_info{}));
  auto member = exporter();
  EXPECT_TRUE(takes_pages(member));
  member.exported.headers = 0;
  EXPECT_FALSE(takes_pages(member));
}

} // namespace
} // namespace hicache
