#include "backends/cluster/lasting_memory.hpp"
#include "backends/cluster/segment_memory.hpp"
#include "base/page_checksum.hpp"
#include "messages/page_header.hpp"
#include "tests/backends/backend_support.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <random>

namespace hicache::test {
namespace {

constexpr auto seed = uint64_t{77};

constexpr auto everything = scan_bounds{~uint64_t{0}, ~size_t{0}};

found_page page_at(uint64_t offset, uint64_t number, uint32_t length) {
  auto page = found_page{};
  page.page = {key_of(number), key_of(number + 1000), length, 7, number % 3, 2};
  page.offset = offset;
  page.generation = static_cast<uint32_t>(number + 1);
  return page;
}

segment_slot slot_of(const found_page& page) {
  return {page.page.key, segment_slot::state::reserved, page.offset, page.generation,
          page.page.length};
}

void fill(page_bytes& memory, const found_page& page, uint64_t number) {
  const auto bytes = bytes_of(number, page.page.length);
  std::ranges::copy(bytes, object_of(memory, slot_of(page)).begin());
}

void seal(page_bytes& memory, const found_page& page) {
  const auto object = std::array{object_of(memory, slot_of(page))};
  seal_slot(memory, slot_of(page), page.page.fingerprint, page_checksum(object));
}

/// Reserves, writes and publishes, as clients and the segment do.
found_page store(page_bytes& memory, uint64_t offset, uint64_t number, uint32_t length) {
  const auto page = page_at(offset, number, length);
  clear_header(memory, offset);
  fill(memory, page, number);
  seal(memory, page);
  keep_slot(memory, page, seed);
  return page;
}

bool is_same(const found_page& one, const found_page& other) {
  return one.page.key == other.page.key && one.page.parent == other.page.parent
         && one.page.length == other.page.length && one.page.fingerprint == other.page.fingerprint
         && one.page.tenant == other.page.tenant && one.page.copies == other.page.copies
         && one.offset == other.offset && one.generation == other.generation;
}

TEST(LastingMemoryTest, FindsWhatWasKeptWithAllThatIsKnownOfIt) {
  auto memory = page_bytes(4096);
  const auto one = store(memory, 0, 1, 100);
  const auto other = store(memory, 1024, 2, 700);
  const auto found = scan_pages(memory, 0, seed, everything);
  ASSERT_EQ(found.list.size(), 2u);
  EXPECT_TRUE(is_same(found.list[0], one));
  EXPECT_TRUE(is_same(found.list[1], other));
  EXPECT_FALSE(found.list[0].was_held);
  EXPECT_TRUE(found.damaged.empty());
  EXPECT_EQ(found.end, memory.size());
}

TEST(LastingMemoryTest, WhatWasNotCommittedIsNotFound) {
  auto memory = page_bytes(4096);
  const auto page = page_at(0, 1, 100);
  fill(memory, page, 1);
  seal(memory, page);
  const auto found = scan_pages(memory, 0, seed, everything);
  EXPECT_TRUE(found.list.empty());
  EXPECT_TRUE(found.damaged.empty()) << "it is no damage either";
}

TEST(LastingMemoryTest, WhatWasRemovedIsNotFound) {
  auto memory = page_bytes(4096);
  const auto page = store(memory, 64, 1, 100);
  clear_header(memory, page.offset);
  EXPECT_TRUE(scan_pages(memory, 0, seed, everything).list.empty());
}

TEST(LastingMemoryTest, AMovedPageIsFoundOnlyOnceItIsKeptAgain) {
  auto memory = page_bytes(4096);
  auto page = store(memory, 256, 1, 100);
  move_slot(memory, 256, 64, slot_bytes_for(100), 9);
  EXPECT_TRUE(scan_pages(memory, 0, seed, everything).list.empty());
  page.offset = 64;
  page.generation = 9;
  keep_slot(memory, page, seed);
  const auto found = scan_pages(memory, 0, seed, everything);
  ASSERT_EQ(found.list.size(), 1u);
  EXPECT_TRUE(is_same(found.list[0], page));
}

TEST(LastingMemoryTest, APageOfEarlierContentsIsNoPage) {
  auto memory = page_bytes(4096);
  store(memory, 0, 1, 100);
  EXPECT_TRUE(scan_pages(memory, 0, seed + 1, everything).list.empty());
}

TEST(LastingMemoryTest, APageInsideAnObjectIsNoPage) {
  auto inner = page_bytes(512);
  store(inner, 0, 1, 100);
  auto memory = page_bytes(4096);
  // As an object of a client that was removed.
  std::ranges::copy(inner, memory.begin() + slot_object_offset);
  EXPECT_TRUE(scan_pages(memory, 0, seed, everything).list.empty());
}

TEST(LastingMemoryTest, AHeaderThatIsNotThePagesIsNotKept) {
  auto memory = page_bytes(4096);
  auto page = page_at(0, 1, 100);
  fill(memory, page, 1);
  seal(memory, page);
  page.page.fingerprint = 8;
  keep_slot(memory, page, seed);
  EXPECT_TRUE(scan_pages(memory, 0, seed, everything).list.empty());
}

TEST(LastingMemoryTest, AHoldIsSeenAndItsEndToo) {
  auto memory = page_bytes(4096);
  store(memory, 0, 1, 100);
  set_held(memory, 0, true);
  EXPECT_TRUE(scan_pages(memory, 0, seed, everything).list.at(0).was_held);
  set_held(memory, 0, false);
  EXPECT_FALSE(scan_pages(memory, 0, seed, everything).list.at(0).was_held);
}

TEST(LastingMemoryTest, PartsFindWhatOneLookFinds) {
  auto memory = page_bytes(64 * 1024);
  auto random = std::mt19937_64{5};
  auto count = size_t{0};
  for (auto offset = uint64_t{0}; offset + 2048 < memory.size();) {
    offset += 64 * (random() % 5);
    const auto length = static_cast<uint32_t>(1 + random() % 1500);
    store(memory, offset, ++count, length);
    offset += slot_bytes_for(length);
  }
  for (const auto& bounds : {scan_bounds{64, 1000}, scan_bounds{1000, 3}, everything}) {
    auto found = size_t{0};
    for (auto next = uint64_t{0}; next < memory.size();) {
      const auto part = scan_pages(memory, next, seed, bounds);
      ASSERT_GT(part.end, next);
      EXPECT_LE(part.list.size(), bounds.pages);
      next = part.end;
      found += part.list.size();
    }
    EXPECT_EQ(found, count);
  }
}

TEST(LastingMemoryTest, EveryFlippedBitCostsThePageOrAHold) {
  auto memory = page_bytes(512);
  const auto page = store(memory, 64, 1, 200);
  for (auto bit = size_t{0}; bit < 8 * (slot_object_offset + 200); ++bit) {
    auto flipped = memory;
    flipped[64 + bit / 8] ^= std::byte{1} << (bit % 8);
    const auto found = scan_pages(flipped, 0, seed, everything);
    if (bit / 8 == page_header_held_offset)
      EXPECT_TRUE(found.list.at(0).was_held);
    else
      EXPECT_TRUE(found.list.empty()) << bit;
  }
  EXPECT_EQ(scan_pages(memory, 0, seed, everything).list.size(), 1u) << page.offset;
}

TEST(LastingMemoryTest, RandomBytesAreNoPages) {
  auto memory = bytes_of(3, 256 * 1024);
  // Headers of nobody, too.
  for (auto offset = size_t{0}; offset < memory.size(); offset += 1024)
    encode_page_header({1, 7, key_of(1), 64, 5, 6, 1, 0},
                       std::span{memory}.subspan(offset).first<page_header_bytes>());
  const auto found = scan_pages(memory, 0, seed, everything);
  EXPECT_TRUE(found.list.empty());
  EXPECT_EQ(found.damaged.size(), 256u);
}

/// A process is killed at any moment of any step: what is found is a page that was committed, and
/// as it was.
TEST(LastingMemoryTest, TornWritesNeverGiveAWrongPage) {
  constexpr auto slots = uint64_t{6};
  constexpr auto stride = uint64_t{576};
  auto random = std::mt19937_64{11};
  auto memory = page_bytes(slots * stride);
  auto committed = std::map<uint64_t, uint64_t>{}; // Offset to number.
  auto cuts = size_t{0};
  for (auto number = uint64_t{1}; number < 400; ++number) {
    const auto offset = stride * (random() % slots);
    const auto page = page_at(offset, number, static_cast<uint32_t>(1 + random() % 400));
    const auto steps = std::array<std::function<void(page_bytes&)>, 4>{
      [&](page_bytes& x) { clear_header(x, offset); },
      [&](page_bytes& x) { fill(x, page, number); },
      [&](page_bytes& x) { seal(x, page); },
      [&](page_bytes& x) { keep_slot(x, page, seed); },
    };
    const auto before = committed.find(offset) == committed.end() ? 0 : committed[offset];
    for (const auto& step : steps) {
      auto after = memory;
      step(after);
      auto changed = std::vector<size_t>{};
      for (auto i = size_t{0}; i < after.size(); ++i)
        if (after[i] != memory[i])
          changed.push_back(i);
      // Cut behind any byte, in order or, as a machine that loses power would, in any.
      for (const auto is_in_order : {true, false}) {
        if (!is_in_order)
          std::ranges::shuffle(changed, random);
        auto torn = memory;
        for (auto i = size_t{0}; i <= changed.size(); ++i) {
          for (const auto& found : scan_pages(torn, offset, seed, {stride, 10}).list) {
            ++cuts;
            const auto number_found = found.page.key == key_of(number) ? number : before;
            ASSERT_NE(number_found, 0u);
            ASSERT_EQ(found.offset, offset);
            ASSERT_EQ(found.page.key, key_of(number_found));
            const auto object = object_of(torn, slot_of(found));
            ASSERT_TRUE(std::ranges::equal(object, bytes_of(number_found, found.page.length)));
          }
          if (i < changed.size())
            torn[changed[i]] = after[changed[i]];
        }
      }
      memory = after;
    }
    committed[offset] = number;
  }
  EXPECT_GT(cuts, 1000u) << "pages were found";
  EXPECT_EQ(scan_pages(memory, 0, seed, everything).list.size(), committed.size());
}

TEST(MemoryLabelTest, SurvivesRoundTrip) {
  auto place = page_bytes(memory_label_bytes, std::byte{3});
  write_label(place, {123456, 42});
  const auto found = read_label(place);
  EXPECT_EQ(found.owner, memory_owner::known);
  EXPECT_EQ(found.label, (memory_label{123456, 42}));
  clear_label(place);
  EXPECT_EQ(read_label(place).owner, memory_owner::stranger);
}

TEST(MemoryLabelTest, EveryFlippedBitShows) {
  auto place = page_bytes(memory_label_bytes);
  write_label(place, {123456, 42});
  for (auto bit = size_t{0}; bit < 8 * 40; ++bit) {
    auto flipped = place;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(read_label(flipped).owner,
              bit < 64 ? memory_owner::stranger : memory_owner::unreadable);
  }
}

TEST(MemoryLabelTest, ShortOrForeignBytesAreAStrangers) {
  EXPECT_EQ(read_label({}).owner, memory_owner::stranger);
  EXPECT_EQ(read_label(page_bytes(8)).owner, memory_owner::stranger);
  EXPECT_EQ(read_label(bytes_of(1, memory_label_bytes)).owner, memory_owner::stranger);
}

} // namespace
} // namespace hicache::test
