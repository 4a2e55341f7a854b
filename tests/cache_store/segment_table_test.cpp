#include "cache/segment_table.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace hicache {
namespace {

using test::key_of;

/// Reserves and publishes; expects room.
slot_reservation store(segment_table& table, uint64_t number, std::optional<uint64_t> parent = {}) {
  const auto parent_key = key_of(parent.value_or(0));
  auto got = table.reserve(key_of(number), parent ? &parent_key : nullptr);
  EXPECT_EQ(got.status, reserve_status::reserved);
  EXPECT_TRUE(table.publish(got.slot, got.generation));
  return got;
}

TEST(SegmentTableTest, APageIsVisibleOnlyOncePublished) {
  auto table = segment_table{2};
  const auto got = table.reserve(key_of(1), nullptr);
  ASSERT_EQ(got.status, reserve_status::reserved);
  EXPECT_EQ(got.generation, 1u);
  EXPECT_FALSE(table.find(key_of(1)));
  EXPECT_FALSE(table.touch(key_of(1)));
  EXPECT_FALSE(table.remove(key_of(1))) << "only its writer can end a write";
  EXPECT_TRUE(table.published(0, 10).empty());
  EXPECT_TRUE(table.publish(got.slot, got.generation));
  EXPECT_EQ(table.find(key_of(1)), (slot_location{got.slot, got.generation}));
  EXPECT_FALSE(table.publish(got.slot, got.generation)) << "twice";
  EXPECT_FALSE(table.abort(got.slot, got.generation)) << "after publishing";
}

TEST(SegmentTableTest, AKeyIsWrittenOnce) {
  auto table = segment_table{2};
  const auto first = table.reserve(key_of(1), nullptr);
  for (auto published : {false, true}) {
    const auto second = table.reserve(key_of(1), nullptr);
    EXPECT_EQ(second.status, reserve_status::already_there) << published;
    EXPECT_EQ(second.slot, first.slot);
    EXPECT_EQ(second.generation, first.generation);
    table.publish(first.slot, first.generation);
  }
  EXPECT_EQ(table.counters().free, 1u);
}

TEST(SegmentTableTest, AReusedSlotHasANewGenerationAndStaleWritersAreIgnored) {
  auto table = segment_table{1};
  const auto first = table.reserve(key_of(1), nullptr);
  ASSERT_TRUE(table.abort(first.slot, first.generation));
  const auto second = table.reserve(key_of(2), nullptr);
  EXPECT_EQ(second.slot, first.slot);
  EXPECT_EQ(second.generation, first.generation + 1);
  EXPECT_FALSE(table.publish(first.slot, first.generation));
  EXPECT_FALSE(table.abort(first.slot, first.generation));
  EXPECT_FALSE(table.publish(7, 1)) << "no such slot";
  EXPECT_TRUE(table.publish(second.slot, second.generation));
}

TEST(SegmentTableTest, TheSlotFreedFirstIsUsedFirst) {
  auto table = segment_table{3};
  const auto a = store(table, 1);
  const auto b = store(table, 2);
  store(table, 3);
  table.remove(key_of(2));
  table.remove(key_of(1));
  EXPECT_EQ(table.reserve(key_of(4), nullptr).slot, b.slot);
  EXPECT_EQ(table.reserve(key_of(5), nullptr).slot, a.slot);
}

TEST(SegmentTableTest, EvictsTheLeastRecentlyUsed) {
  auto table = segment_table{3};
  for (auto i : {1, 2, 3})
    store(table, i);
  EXPECT_TRUE(table.touch(key_of(1)));
  EXPECT_EQ(store(table, 4).evicted, key_of(2));
  EXPECT_FALSE(table.find(key_of(2)));
  EXPECT_EQ(store(table, 5).evicted, key_of(3));
  EXPECT_EQ(store(table, 6).evicted, key_of(1));
  EXPECT_EQ(table.counters().evicted, 3u);
}

TEST(SegmentTableTest, EvictsSuffixesBeforePrefixes) {
  auto table = segment_table{3};
  store(table, 1);
  store(table, 2, 1);
  store(table, 3, 2);
  EXPECT_EQ(store(table, 10).evicted, key_of(3));
  EXPECT_EQ(store(table, 11).evicted, key_of(2));
  EXPECT_EQ(store(table, 12).evicted, key_of(1));
}

TEST(SegmentTableTest, NeverEvictsTheParentOfTheNewPage) {
  auto table = segment_table{2};
  store(table, 1);
  store(table, 2);
  EXPECT_EQ(store(table, 3, 1).evicted, key_of(2)) << "1 is older, but the parent";
  auto one = segment_table{1};
  store(one, 1);
  const auto parent = key_of(1);
  EXPECT_EQ(one.reserve(key_of(2), &parent).status, reserve_status::full);
  EXPECT_EQ(store(one, 3).evicted, parent) << "the failed reservation left no protection behind";
}

TEST(SegmentTableTest, PagesBeingWrittenAreNotEvictedAndProtectTheirParents) {
  auto table = segment_table{2};
  store(table, 1);
  const auto parent = key_of(1);
  const auto child = table.reserve(key_of(2), &parent);
  EXPECT_EQ(table.reserve(key_of(3), nullptr).status, reserve_status::full);
  EXPECT_TRUE(table.abort(child.slot, child.generation));
  store(table, 3);
  EXPECT_EQ(store(table, 4).evicted, parent);
}

TEST(SegmentTableTest, ARemovedParentIsProtectedAgainWhenItReturns) {
  auto table = segment_table{2};
  store(table, 1);
  store(table, 2, 1);
  EXPECT_TRUE(table.remove(key_of(1)));
  EXPECT_TRUE(table.find(key_of(2))) << "children stay";
  store(table, 1);
  table.touch(key_of(2));
  EXPECT_EQ(store(table, 3).evicted, key_of(2)) << "older, but the parent of 2";
}

TEST(SegmentTableTest, ReportsPublishedPagesInSlotOrderAndInParts) {
  auto table = segment_table{5};
  for (auto i : {1, 2, 3, 4})
    store(table, i);
  table.remove(key_of(2));
  const auto first = table.published(0, 2);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0], (stored_page{key_of(1), 0, 1}));
  EXPECT_EQ(first[1], (stored_page{key_of(3), 2, 1}));
  const auto rest = table.published(first.back().slot + 1, 10);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].key, key_of(4));
}

// -- against a naive model ----------------------------------------------------

/// The same rules, written as scans.
struct model {
  struct entry {
    std::optional<uint64_t> parent;
    uint32_t slot = 0;
    uint32_t generation = 0;
    bool published = false;
    uint64_t used = 0;
  };

  uint32_t slots = 0;
  std::map<uint64_t, entry> pages;
  uint64_t clock = 0;

  bool has_child(uint64_t number) const {
    return std::any_of(pages.begin(), pages.end(),
                       [&](const auto& x) { return x.second.parent == number; });
  }

  std::optional<uint64_t> victim(std::optional<uint64_t> parent) const {
    auto best = std::optional<uint64_t>{};
    for (const auto& [number, page] : pages)
      if (page.published && !has_child(number) && parent != number
          && (!best || page.used < pages.at(*best).used))
        best = number;
    return best;
  }
};

class SegmentTableModelTest : public testing::TestWithParam<uint64_t> {
protected:
  static constexpr auto numbers = uint64_t{40};

  void reserve() {
    const auto number = any();
    const auto parent = number % 5 == 0 ? std::nullopt : std::optional{number - 1};
    const auto parent_key = key_of(parent.value_or(0));
    const auto got = table.reserve(key_of(number), parent ? &parent_key : nullptr);
    if (expected.pages.count(number) > 0) {
      ASSERT_EQ(got.status, reserve_status::already_there);
      ASSERT_EQ(got.slot, expected.pages[number].slot);
      return;
    }
    auto evicted = std::optional<page_key>{};
    if (expected.pages.size() == expected.slots) {
      const auto victim = expected.victim(parent);
      if (!victim) {
        ASSERT_EQ(got.status, reserve_status::full);
        return;
      }
      evicted = key_of(*victim);
      expected.pages.erase(*victim);
    }
    ASSERT_EQ(got.status, reserve_status::reserved);
    ASSERT_EQ(got.evicted, evicted);
    auto& last = generations[got.slot];
    ASSERT_GT(got.generation, last);
    last = got.generation;
    expected.pages[number] = {parent, got.slot, got.generation, false, 0};
  }

  void end_write() {
    const auto number = any();
    const auto at = expected.pages.find(number);
    if (at == expected.pages.end())
      return;
    auto& page = at->second;
    if (random() % 4 == 0) {
      ASSERT_EQ(table.abort(page.slot, page.generation), !page.published);
      if (!page.published)
        expected.pages.erase(at);
      return;
    }
    ASSERT_EQ(table.publish(page.slot, page.generation), !page.published);
    if (!page.published)
      page.used = ++expected.clock;
    page.published = true;
  }

  void touch_or_remove() {
    const auto number = any();
    const auto at = expected.pages.find(number);
    const auto there = at != expected.pages.end() && at->second.published;
    if (random() % 8 == 0) {
      ASSERT_EQ(table.remove(key_of(number)), there);
      if (there)
        expected.pages.erase(at);
      return;
    }
    ASSERT_EQ(table.touch(key_of(number)), there);
    if (there)
      at->second.used = ++expected.clock;
  }

  void compare() {
    auto published = uint32_t{0};
    auto slots = std::set<uint32_t>{};
    for (uint64_t number = 0; number < numbers; ++number) {
      const auto found = table.find(key_of(number));
      const auto at = expected.pages.find(number);
      ASSERT_EQ(found.has_value(), at != expected.pages.end() && at->second.published);
      if (at == expected.pages.end())
        continue;
      ASSERT_TRUE(slots.insert(at->second.slot).second) << "a slot was given out twice";
      if (found) {
        ++published;
        ASSERT_EQ(*found, (slot_location{at->second.slot, at->second.generation}));
      }
    }
    const auto counters = table.counters();
    ASSERT_EQ(counters.published, published);
    ASSERT_EQ(counters.writing, expected.pages.size() - published);
    ASSERT_EQ(counters.free, expected.slots - expected.pages.size());
    ASSERT_EQ(table.published(0, numbers).size(), published);
  }

  uint64_t any() { return random() % numbers; }

  std::mt19937_64 random{GetParam()};
  model expected{12, {}, 0};
  segment_table table{12};
  std::map<uint32_t, uint32_t> generations;
};

TEST_P(SegmentTableModelTest, BehavesLikeTheModel) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  for (auto step = 0; step < 4000; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    switch (random() % 5) {
      case 0:
      case 1:
        reserve();
        break;
      case 2:
      case 3:
        end_write();
        break;
      default:
        touch_or_remove();
    }
    compare();
    if (HasFatalFailure())
      return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SegmentTableModelTest, testing::Range(uint64_t{1}, uint64_t{9}));

} // namespace
} // namespace hicache
