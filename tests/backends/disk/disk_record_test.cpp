#include "messages/disk_record.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/disk/disk_support.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace hicache::test {
namespace {

disk_record record_of(size_t objects, size_t removals) {
  auto record = disk_record{3, 7, 6, {}, {}};
  for (auto i = size_t{0}; i < objects; ++i)
    record.objects.push_back({key_of(i), key_of(i + 1), i * 1000, i, i + 5, i + 6});
  for (auto i = size_t{0}; i < removals; ++i)
    record.removals.push_back({key_of(i), i + 1, i * 4096});
  return record;
}

page_bytes encoded(const disk_record& record) {
  auto bytes = page_bytes(disk_header_bytes(record.objects.size(), record.removals.size()));
  encode_disk_record(record, bytes);
  return bytes;
}

TEST(DiskRecord, ComesBackWhateverItHolds) {
  for (const auto objects : {size_t{0}, size_t{1}, size_t{42}, disk_record_objects})
    for (const auto removals : {size_t{0}, size_t{1}, disk_record_objects}) {
      const auto record = record_of(objects, removals);
      const auto bytes = encoded(record);
      EXPECT_EQ(bytes.size() % disk_block_bytes, 0u);
      EXPECT_EQ(disk_header_at(std::span{bytes}.first(disk_block_bytes)), bytes.size());
      EXPECT_EQ(decode_disk_record(bytes).value(), record) << objects << ' ' << removals;
    }
}

TEST(DiskRecord, VersionTwoHasNoTenants) {
  // One more object, and the header of version 3 takes another block.
  for (const auto objects : {size_t{35}, size_t{36}}) {
    auto record = record_of(objects, 0);
    EXPECT_EQ(disk_header_bytes(record), disk_block_bytes * (objects - 34));
    EXPECT_EQ(disk_header_bytes(record), disk_header_bytes(objects, 0));
    record.version = 2;
    const auto header = header_of_version_2(record);
    EXPECT_EQ(header.size(), disk_block_bytes);
    EXPECT_FALSE(is_disk_header_of_other_version(header));
    for (auto& object : record.objects)
      object.tenant = 0;
    const auto decoded = decode_disk_record(header);
    ASSERT_TRUE(decoded) << to_string(decoded.error());
    EXPECT_EQ(*decoded, record);
    EXPECT_EQ(disk_header_bytes(*decoded), header.size());
  }
}

TEST(DiskRecord, ObjectsTakeWholeBlocks) {
  auto record = disk_record{};
  record.objects = {{key_of(1), {}, 1}, {key_of(2), {}, 4096}, {key_of(3), {}, 4097}};
  EXPECT_EQ(disk_record_bytes(record), disk_block_bytes * (1 + 1 + 1 + 2));
}

TEST(DiskRecord, AnyWrongByteIsFound) {
  const auto bytes = encoded(record_of(3, 2));
  auto used = bytes.size();
  while (bytes[used - 1] == std::byte{0})
    --used;
  for (auto at = size_t{0}; at < used; ++at) {
    if (at >= 12 && at < 16)
      continue; // Padding.
    auto damaged = bytes;
    damaged[at] ^= std::byte{0x11};
    EXPECT_FALSE(decode_disk_record(damaged)) << at;
  }
}

TEST(DiskRecord, WhatIsNoHeaderIsRefused) {
  EXPECT_FALSE(disk_header_at({}));
  EXPECT_FALSE(disk_header_at(page_bytes(disk_block_bytes)));
  auto empty = encoded(record_of(0, 0));
  std::fill_n(empty.begin() + 8, 4, std::byte{0}); // The bytes of the message.
  EXPECT_FALSE(disk_header_at(empty));
  auto cut_one = encoded(record_of(100, 0));
  ASSERT_GT(cut_one.size(), disk_block_bytes);
  cut_one.resize(disk_block_bytes);
  EXPECT_TRUE(disk_header_at(cut_one));
  EXPECT_EQ(code_of(decode_disk_record(cut_one)), ec::corrupt_page);
}

} // namespace
} // namespace hicache::test
