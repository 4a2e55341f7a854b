#include "cache/store/segment_table.hpp"
#include "tests/cache_store/test_segment.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

std::vector<page_key> keys(std::vector<uint64_t> numbers) {
  auto list = std::vector<page_key>{};
  for (const auto number : numbers)
    list.push_back(key_of(number));
  return list;
}

TEST(SegmentTableTest, APageIsVisibleOnlyOncePublished) {
  auto table = table_of(2);
  const auto got = reserve(table, page(1));
  ASSERT_EQ(got.status, reserve_status::reserved);
  EXPECT_NE(got.generation, 0u);
  EXPECT_FALSE(table.find(key_of(1)));
  EXPECT_FALSE(table.touch(key_of(1)));
  EXPECT_FALSE(table.pin(key_of(1), pin_kind::soft, no_time));
  EXPECT_FALSE(table.remove(key_of(1))) << "only its writer can end a write";
  EXPECT_TRUE(table.published(0, 10).empty());
  EXPECT_TRUE(table.publish(key_of(1), got.generation));
  EXPECT_EQ(table.find(key_of(1)), (stored_page{key_of(1), got.offset, got.generation, 1, 1, 0}));
  EXPECT_FALSE(table.publish(key_of(1), got.generation)) << "twice";
  EXPECT_FALSE(table.abort(key_of(1), got.generation)) << "after publishing";
}

TEST(SegmentTableTest, WithoutMemoryNothingIsStored) {
  auto table = table_of(0);
  EXPECT_EQ(reserve(table, page(1)).status, reserve_status::full);
  EXPECT_TRUE(table.published(0, 10).empty());
  EXPECT_EQ(table.counters().used_bytes, 0u);
}

TEST(SegmentTableTest, AKeyIsWrittenOnce) {
  auto table = table_of(2);
  const auto first = reserve(table, page(1));
  for (auto published : {false, true}) {
    const auto second = reserve(table, page(1));
    EXPECT_EQ(second.status, reserve_status::already_there) << published;
    EXPECT_EQ(second.offset, first.offset);
    EXPECT_EQ(second.generation, first.generation);
    table.publish(key_of(1), first.generation);
  }
  EXPECT_EQ(table.counters().used_bytes, 1u);
}

TEST(SegmentTableTest, AReusedPlaceHasANewGenerationAndStaleWritersAreIgnored) {
  auto table = table_of(1);
  const auto first = reserve(table, page(1));
  ASSERT_TRUE(table.abort(key_of(1), first.generation));
  const auto second = reserve(table, page(1));
  EXPECT_EQ(second.offset, first.offset);
  EXPECT_GT(second.generation, first.generation);
  EXPECT_FALSE(table.publish(key_of(1), first.generation));
  EXPECT_FALSE(table.abort(key_of(1), first.generation));
  EXPECT_FALSE(table.publish(key_of(7), second.generation)) << "no such page";
  EXPECT_TRUE(table.publish(key_of(1), second.generation));
}

TEST(SegmentTableTest, EvictsTheLeastRecentlyUsed) {
  auto table = table_of(3);
  for (auto i : {1, 2, 3})
    store(table, page(i));
  EXPECT_TRUE(table.touch(key_of(1)));
  const auto got = store(table, page(4));
  EXPECT_EQ(evicted_by(got), keys({2}));
  EXPECT_EQ(got.evicted.front().offset, got.offset) << "its place is told, to be cleared";
  EXPECT_FALSE(table.find(key_of(2)));
  EXPECT_EQ(evicted_by(store(table, page(5))), keys({3}));
  EXPECT_EQ(evicted_by(store(table, page(6))), keys({1}));
  EXPECT_EQ(table.counters().evicted, 3u);
}

TEST(SegmentTableTest, EvictsByTheChosenPolicy) {
  auto table = segment_table{3, {*make_eviction_policy("lfu")}};
  for (auto i : {1, 2, 3})
    store(table, page(i));
  for (auto i : {1, 1, 2, 3, 3})
    table.touch(key_of(i));
  EXPECT_EQ(evicted_by(store(table, page(4))), keys({2})) << "used once, though not last";
}

TEST(SegmentTableTest, EvictsANamespaceThatHasEndedFirst) {
  for (const auto* policy : {"lru", "lfu"}) {
    auto table = segment_table{4, {*make_eviction_policy(policy)}};
    auto of_ended = [](uint64_t key, std::optional<uint64_t> parent = {}) {
      auto made = page(key, 1, parent);
      made.fingerprint = 5;
      return made;
    };
    store(table, page(1));
    store(table, of_ended(2));
    store(table, of_ended(3, 2));
    store(table, of_ended(4));
    for (auto i : {2, 3, 4, 4})
      table.touch(key_of(i));
    EXPECT_EQ(table.evict_first(5), (std::pair{uint64_t{3}, uint64_t{3}}));
    EXPECT_TRUE(table.touch(key_of(4))) << "somebody uses it";
    EXPECT_EQ(evicted_by(store(table, page(5))), keys({3})) << policy;
    EXPECT_EQ(evicted_by(store(table, page(6))), keys({2})) << policy;
    EXPECT_EQ(evicted_by(store(table, page(7))), keys({1})) << policy;
  }
}

TEST(SegmentTableTest, EvictsSuffixesBeforePrefixes) {
  auto table = table_of(3);
  store(table, page(1));
  store(table, page(2, 1, 1));
  store(table, page(3, 1, 2));
  EXPECT_EQ(evicted_by(store(table, page(10))), keys({3}));
  EXPECT_EQ(evicted_by(store(table, page(11))), keys({2}));
  EXPECT_EQ(evicted_by(store(table, page(12))), keys({1}));
}

TEST(SegmentTableTest, NeverEvictsTheParentOfTheNewPage) {
  auto table = table_of(2);
  store(table, page(1));
  store(table, page(2));
  EXPECT_EQ(evicted_by(store(table, page(3, 1, 1))), keys({2})) << "1 is older, but the parent";
  auto one = table_of(1);
  store(one, page(1));
  EXPECT_EQ(reserve(one, page(2, 1, 1)).status, reserve_status::full);
  EXPECT_EQ(evicted_by(store(one, page(3))), keys({1}))
    << "the failed reservation left no protection behind";
}

TEST(SegmentTableTest, PagesBeingWrittenAreNotEvictedAndProtectTheirParents) {
  auto table = table_of(2);
  store(table, page(1));
  const auto child = reserve(table, page(2, 1, 1));
  EXPECT_EQ(reserve(table, page(3)).status, reserve_status::full);
  EXPECT_TRUE(table.abort(key_of(2), child.generation));
  store(table, page(3));
  EXPECT_EQ(evicted_by(store(table, page(4))), keys({1}));
}

TEST(SegmentTableTest, ARemovedParentIsProtectedAgainWhenItReturns) {
  auto table = table_of(2);
  store(table, page(1));
  store(table, page(2, 1, 1));
  EXPECT_TRUE(table.remove(key_of(1)));
  EXPECT_TRUE(table.find(key_of(2))) << "children stay";
  store(table, page(1));
  table.touch(key_of(2));
  EXPECT_EQ(evicted_by(store(table, page(3))), keys({2})) << "1 is older, but the parent of 2";
}

TEST(SegmentTableTest, ReportsPublishedPagesInOrderAndInParts) {
  auto table = table_of(5);
  for (auto i : {1, 2, 3, 4})
    store(table, page(i));
  table.remove(key_of(2));
  const auto first = table.published(0, 2);
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0], (stored_page{key_of(1), 0, 1, 1, 1, 0}));
  EXPECT_EQ(first[1], (stored_page{key_of(3), 2, 3, 3, 1, 0}));
  const auto rest = table.published(first.back().offset + first.back().bytes, 10);
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].key, key_of(4));
}

// -- pages of several sizes ---------------------------------------------------

TEST(SegmentTableTest, TakesPagesOfAnySize) {
  auto table = table_of(100);
  EXPECT_EQ(store(table, page(1, 60)).offset, 0u);
  EXPECT_EQ(store(table, page(2, 30)).offset, 60u);
  EXPECT_EQ(store(table, page(3, 10)).offset, 90u);
  EXPECT_EQ(reserve(table, page(4, 101)).status, reserve_status::full);
  EXPECT_TRUE(table.find(key_of(1))) << "a page that never fits makes nobody go";
  EXPECT_EQ(evicted_by(store(table, page(5, 100))), keys({1, 2, 3}));
}

TEST(SegmentTableTest, TakesTheSmallestHoleThatFits) {
  auto table = table_of(100);
  for (auto [number, bytes] : {std::pair{1, 40}, {2, 10}, {3, 20}, {4, 10}, {5, 20}})
    store(table, page(number, bytes));
  table.remove(key_of(1));
  table.remove(key_of(3));
  EXPECT_EQ(store(table, page(6, 15)).offset, 50u);
  EXPECT_EQ(store(table, page(7, 25)).offset, 0u);
}

TEST(SegmentTableTest, MovesThePagesBetweenHolesThatAreTooSmall) {
  auto table = table_of(100);
  for (auto i = 0; i < 10; ++i)
    store(table, page(i, 10));
  for (auto i : {1, 3, 8}) // Holes of 10 at 10, 30 and 80.
    table.remove(key_of(i));
  const auto got = store(table, page(20, 20));
  EXPECT_TRUE(got.evicted.empty()) << "there was room for it";
  ASSERT_EQ(got.moved.size(), 1u) << "of all, the two holes with the fewest bytes between them";
  EXPECT_EQ(got.moved[0].key, key_of(2));
  EXPECT_EQ(got.moved[0].from, 20u);
  EXPECT_EQ(got.moved[0].to, 10u);
  EXPECT_EQ(got.offset, 20u);
  const auto found = table.find(key_of(2));
  ASSERT_TRUE(found);
  EXPECT_EQ(*found, (stored_page{key_of(2), 10, got.moved[0].generation, 2, 10, 0}));
  EXPECT_GT(found->generation, 10u) << "who was told of the old place must notice";
}

TEST(SegmentTableTest, PagesBeingWrittenDoNotMove) {
  auto table = table_of(30);
  store(table, page(1, 10));
  const auto writing = reserve(table, page(2, 10));
  store(table, page(3, 10));
  table.remove(key_of(1));
  table.remove(key_of(3));
  EXPECT_EQ(reserve(table, page(4, 20)).status, reserve_status::full);
  EXPECT_TRUE(table.publish(key_of(2), writing.generation));
  const auto got = reserve(table, page(4, 20));
  EXPECT_EQ(got.status, reserve_status::reserved);
  EXPECT_EQ(got.moved.size(), 1u);
}

// -- pins, quotas, watermarks -------------------------------------------------

TEST(SegmentTableTest, HardPinsStayAndSoftOnesGoLast) {
  auto table = table_of(4);
  for (auto i : {1, 2, 3, 4})
    store(table, page(i));
  EXPECT_TRUE(table.pin(key_of(1), pin_kind::hard, no_time));
  EXPECT_TRUE(table.pin(key_of(2), pin_kind::soft, no_time + 1h));
  EXPECT_EQ(evicted_by(store(table, page(5))), keys({3}));
  EXPECT_EQ(evicted_by(store(table, page(6))), keys({4}));
  table.touch(key_of(2));
  const auto five = reserve(table, page(7));
  EXPECT_EQ(evicted_by(five), keys({5}));
  EXPECT_EQ(evicted_by(reserve(table, page(8))), keys({6}));
  EXPECT_EQ(evicted_by(reserve(table, page(9))), keys({2})) << "nothing else is left";
  EXPECT_EQ(reserve(table, page(10)).status, reserve_status::full);
  EXPECT_TRUE(table.pin(key_of(1), pin_kind::none, no_time));
  EXPECT_EQ(evicted_by(reserve(table, page(10))), keys({1}));
}

TEST(SegmentTableTest, SoftPinsEndWithTheirTime) {
  auto table = table_of(2);
  store(table, page(1));
  store(table, page(2));
  EXPECT_TRUE(table.pin(key_of(1), pin_kind::soft, no_time + 5s));
  EXPECT_EQ(evicted_by(table.reserve(page(3), no_time + 4s)), keys({2}));
  EXPECT_EQ(evicted_by(table.reserve(page(4), no_time + 5s)), keys({1}));
}

TEST(SegmentTableTest, HardPinsKeepToTheirShare) {
  auto policy = segment_policy{};
  policy.pinned_share = 0.5;
  auto table = segment_table{4, policy};
  for (auto i : {1, 2, 3})
    store(table, page(i));
  EXPECT_TRUE(table.pin(key_of(1), pin_kind::hard, no_time));
  EXPECT_TRUE(table.pin(key_of(1), pin_kind::hard, no_time)) << "counts once";
  EXPECT_TRUE(table.pin(key_of(2), pin_kind::hard, no_time));
  EXPECT_FALSE(table.pin(key_of(3), pin_kind::hard, no_time));
  EXPECT_EQ(table.counters().pinned_bytes, 2u);
  EXPECT_TRUE(table.remove(key_of(1)));
  EXPECT_EQ(table.counters().pinned_bytes, 1u);
  EXPECT_TRUE(table.pin(key_of(3), pin_kind::hard, no_time));
}

TEST(SegmentTableTest, ATenantAtItsShareLosesItsOwnPages) {
  auto policy = segment_policy{};
  policy.tenant_share = 0.5;
  auto table = segment_table{4, policy};
  store(table, page(1, 1, {}, 7));
  store(table, page(2, 1, {}, 8));
  store(table, page(3, 1, {}, 8));
  EXPECT_EQ(evicted_by(store(table, page(4, 1, {}, 8))), keys({2})) << "1 is older, but of another";
  const auto first = reserve(table, page(5, 1, 4, 8));
  EXPECT_EQ(evicted_by(first), keys({3}));
  EXPECT_EQ(reserve(table, page(6, 1, {}, 8)).status, reserve_status::full)
    << "its own are a parent and one being written";
  EXPECT_EQ(reserve(table, page(7, 1, {}, 9)).status, reserve_status::reserved);
  EXPECT_EQ(reserve(table, page(8, 3, {}, 9)).status, reserve_status::full);
}

TEST(SegmentTableTest, MakesRoomDownToTheLowWatermark) {
  auto policy = segment_policy{};
  policy.high_watermark = 0.9;
  policy.low_watermark = 0.5;
  auto table = segment_table{10, policy};
  for (auto i = 1; i <= 9; ++i)
    EXPECT_TRUE(store(table, page(i)).evicted.empty()) << i;
  EXPECT_EQ(evicted_by(store(table, page(10))), keys({1, 2, 3, 4, 5}));
  EXPECT_EQ(table.counters().used_bytes, 5u);
}

TEST(SegmentTableTest, AClosedSegmentTakesNothing) {
  auto table = table_of(2);
  const auto got = reserve(table, page(1));
  table.close();
  EXPECT_EQ(reserve(table, page(2)).status, reserve_status::full);
  EXPECT_FALSE(table.publish(key_of(1), got.generation)) << "begun before, and late";
  EXPECT_EQ(table.counters().used_bytes, 0u);
}

TEST(SegmentTableTest, KnowsWhatIsWorthKeepingParentsFirst) {
  auto table = table_of(10);
  store(table, page(1));
  store(table, page(2, 1, 1));
  store(table, page(3, 1, 2));
  store(table, page(4, 1, 2));
  store(table, page(5));
  store(table, page(6));
  table.touch(key_of(4));
  table.touch(key_of(5));
  table.touch(key_of(5));
  EXPECT_TRUE(table.pin(key_of(3), pin_kind::soft, no_time + 1s));
  auto kept = std::vector<page_key>{};
  for (const auto& one : table.worth_keeping(2)) {
    kept.push_back(one.page.key);
    EXPECT_EQ(one.pin, one.page.key == key_of(3) ? pin_kind::soft : pin_kind::none);
  }
  EXPECT_EQ(kept, keys({1, 2, 3, 5}));
}

TEST(SegmentTableTest, FindsThePagesOfANamespace) {
  auto table = table_of(4);
  auto other = page(2);
  other.fingerprint = 5;
  store(table, page(1));
  store(table, other);
  EXPECT_EQ(table.of_namespace(5), keys({2}));
}

// -- against a naive model ----------------------------------------------------

/// The same rules, written as scans; where a page lies is the table's choice.
struct model {
  struct entry {
    std::optional<uint64_t> parent;
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint32_t generation = 0;
    bool published = false;
    uint64_t used = 0;
    pin_kind pin = pin_kind::none;
  };

  uint64_t capacity = 0;
  std::map<uint64_t, entry> pages;
  uint64_t clock = 0;

  uint64_t used_bytes() const {
    auto sum = uint64_t{0};
    for (const auto& [number, page] : pages)
      sum += page.bytes;
    return sum;
  }

  bool has_child(uint64_t number) const {
    return std::any_of(pages.begin(), pages.end(),
                       [&](const auto& x) { return x.second.parent == number; });
  }

  std::optional<uint64_t> victim(std::optional<uint64_t> parent) const {
    auto best = std::optional<uint64_t>{};
    const auto order = [&](uint64_t number) {
      return std::pair{pages.at(number).pin, pages.at(number).used};
    };
    for (const auto& [number, page] : pages)
      if (page.published && !has_child(number) && parent != number && page.pin != pin_kind::hard
          && (!best || order(number) < order(*best)))
        best = number;
    return best;
  }

  bool is_any_written() const {
    return std::any_of(pages.begin(), pages.end(),
                       [](const auto& x) { return !x.second.published; });
  }
};

class SegmentTableModelTest : public testing::TestWithParam<uint64_t> {
protected:
  static constexpr auto numbers = uint64_t{40};

  void reserve_any() {
    const auto number = any();
    const auto parent = number % 5 == 0 ? std::nullopt : std::optional{number - 1};
    const auto bytes = 1 + random() % 30;
    const auto got = reserve(table, page(number, bytes, parent));
    if (expected.pages.count(number) > 0) {
      ASSERT_EQ(got.status, reserve_status::already_there);
      ASSERT_EQ(got.generation, expected.pages[number].generation);
      return;
    }
    for (const auto& gone : got.evicted) {
      const auto victim = expected.victim(parent);
      ASSERT_TRUE(victim);
      ASSERT_EQ(gone.key, key_of(*victim));
      ASSERT_EQ(gone.offset, expected.pages[*victim].offset);
      // Only writers may be the reason that free bytes did not do.
      ASSERT_TRUE(expected.used_bytes() + bytes > expected.capacity || expected.is_any_written());
      expected.pages.erase(*victim);
    }
    move(got.moved);
    if (got.status == reserve_status::full) {
      ASSERT_FALSE(expected.victim(parent));
      ASSERT_TRUE(expected.used_bytes() + bytes > expected.capacity || expected.is_any_written());
      return;
    }
    ASSERT_GT(got.generation, last_generation);
    last_generation = got.generation;
    expected.pages[number] = {parent, got.offset, bytes, got.generation, false, 0, pin_kind::none};
  }

  void move(const std::vector<moved_page>& moved) {
    for (const auto& one : moved) {
      const auto at = std::ranges::find_if(
        expected.pages, [&](const auto& x) { return key_of(x.first) == one.key; });
      ASSERT_TRUE(at != expected.pages.end() && at->second.published);
      ASSERT_EQ(at->second.offset, one.from);
      ASSERT_EQ(at->second.bytes, one.bytes);
      ASSERT_GT(one.generation, last_generation);
      last_generation = one.generation;
      at->second.offset = one.to;
      at->second.generation = one.generation;
    }
  }

  void end_write() {
    const auto number = any();
    const auto at = expected.pages.find(number);
    if (at == expected.pages.end())
      return;
    auto& one = at->second;
    if (random() % 4 == 0) {
      ASSERT_EQ(table.abort(key_of(number), one.generation), !one.published);
      if (!one.published)
        expected.pages.erase(at);
      return;
    }
    ASSERT_EQ(table.publish(key_of(number), one.generation), !one.published);
    if (!one.published)
      one.used = ++expected.clock;
    one.published = true;
  }

  void use_or_remove() {
    const auto number = any();
    const auto at = expected.pages.find(number);
    const auto there = at != expected.pages.end() && at->second.published;
    if (const auto choice = random() % 8; choice == 0) {
      ASSERT_EQ(table.remove(key_of(number)), there);
      if (there)
        expected.pages.erase(at);
    } else if (choice == 1) {
      const auto kind = static_cast<pin_kind>(random() % 3);
      const auto pinned = table.pin(key_of(number), kind, time_point::max());
      ASSERT_TRUE(there || !pinned);
      if (pinned)
        at->second.pin = kind;
    } else {
      ASSERT_EQ(table.touch(key_of(number)), there);
      if (there)
        at->second.used = ++expected.clock;
    }
  }

  void compare() {
    auto places = std::map<uint64_t, uint64_t>{};
    for (const auto& [number, one] : expected.pages) {
      ASSERT_TRUE(places.emplace(one.offset, one.bytes).second);
      const auto found = table.find(key_of(number));
      ASSERT_EQ(found.has_value(), one.published);
      if (found) {
        ASSERT_EQ(*found, (stored_page{key_of(number), one.offset, one.generation,
                                       static_cast<uint32_t>(number), one.bytes, 0}));
      }
    }
    auto end = uint64_t{0};
    for (const auto& [offset, bytes] : places) {
      ASSERT_GE(offset, end) << "two pages overlap";
      end = offset + bytes;
    }
    ASSERT_LE(end, expected.capacity);
    ASSERT_EQ(table.counters().used_bytes, expected.used_bytes());
    ASSERT_EQ(table.counters().pages, table.published(0, numbers).size());
  }

  uint64_t any() { return random() % numbers; }

  std::mt19937_64 random{GetParam()};
  model expected{150, {}, 0};
  segment_table table{150, {}};
  uint32_t last_generation = 0;
};

TEST_P(SegmentTableModelTest, BehavesLikeTheModel) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  for (auto step = 0; step < 4000; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    switch (random() % 5) {
      case 0:
      case 1:
        reserve_any();
        break;
      case 2:
      case 3:
        end_write();
        break;
      default:
        use_or_remove();
    }
    compare();
    if (HasFatalFailure())
      return;
  }
  EXPECT_GT(table.counters().moved, 0u);
  EXPECT_GT(table.counters().evicted, 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SegmentTableModelTest, testing::Range(uint64_t{1}, uint64_t{9}));

} // namespace
} // namespace hicache
