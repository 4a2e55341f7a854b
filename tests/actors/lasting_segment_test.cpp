// A node whose memory outlives it, and the next one with the same memory.

#include "actors/page_scanner.hpp"
#include "backends/cluster/lasting_memory.hpp"
#include "base/limits.hpp"
#include "tests/actors/node_fixture.hpp"

#include <gtest/gtest.h>

namespace hicache::test {
namespace {

constexpr auto seed = uint64_t{5};

class LastingSegmentTest : public NodeTest {
protected:
  ~LastingSegmentTest() override { stop_all(); }

  void SetUp() override { lasting_ = lasting_memory{seed, false}; }

  /// A node whose clients may use all of it.
  void begin(uint32_t slots) { start(slots, {0, 1, 1, 1}); }

  /// The node is killed, and another one has its memory.
  void restart() {
    stop(node_);
    stop(segment_);
    lasting_->has_pages = true;
    figures_ = std::make_shared<member_figures>();
    begin(0);
  }

  void scan() {
    spawn(page_scanner, page_scanner_options{memory_, seed, segment_, figures_, &clock});
  }

  /// The next part of a scan, of so many slots.
  void scan_slots(uint64_t count) {
    auto part = scan_pages(memory_, next_, seed, {count * slot_bytes, 100});
    next_ = part.end;
    ask_value<atom::ok>(segment_, atom::adopt_v, part);
  }

  /// Which pages are there, without a lease.
  std::vector<bool> find(const std::vector<uint64_t>& numbers, uint64_t fingerprint = 0) {
    const auto one = client(0, fingerprint);
    auto list = std::vector<bool>{};
    for (const auto number : numbers) {
      const auto seen = ask_as<page_totals>(one, atom::fetch_v, page_prefetch{{key_of(number)}});
      list.push_back(seen && seen->left_out.empty());
    }
    return list;
  }

  uint64_t next_ = 0;
};

TEST_F(LastingSegmentTest, CommittedPagesComeBackOnceTheyAreFound) {
  begin(8);
  const auto one = client();
  store_as(one, {1, 2});
  const auto reserved = reserve_as(one, {3});
  write(reserved.places[0], 3);
  restart();
  EXPECT_EQ(status().unscanned_bytes, memory_.size());
  EXPECT_EQ(status().used_bytes, 0u);
  EXPECT_EQ(find({1, 2, 3}), (std::vector{false, false, false}));
  scan();
  EXPECT_EQ(find({1, 2, 3}), (std::vector{true, true, false}));
  const auto seen = status();
  EXPECT_EQ(seen.pages_kept, 2u);
  EXPECT_EQ(seen.pages_dropped, 0u);
  EXPECT_EQ(seen.unscanned_bytes, 0u);
  EXPECT_EQ(seen.used_bytes, 2 * slot_bytes);
  EXPECT_EQ(locate(1).size(), 1u) << "the index has heard of it";
  const auto again = look_up_as(client(), lookup({1}));
  EXPECT_TRUE(is_page(again.places[0], 1));
}

TEST_F(LastingSegmentTest, PagesComeBackAgainAndAgain) {
  begin(8);
  store_as(client(), {1});
  for (auto i = 0; i < 3; ++i) {
    restart();
    scan();
    EXPECT_EQ(find({1}), std::vector{true});
  }
}

TEST_F(LastingSegmentTest, RemovedAndEvictedPagesDoNot) {
  begin(3);
  const auto one = client();
  store_as(one, {1, 2, 3});
  remove_as(one, {2});
  store_as(one, {4, 5}); // 1 is evicted.
  restart();
  scan();
  EXPECT_EQ(find({1, 2, 3, 4, 5}), (std::vector{false, false, true, true, true}));
  EXPECT_EQ(status().pages_dropped, 0u);
}

TEST_F(LastingSegmentTest, DamagedPagesAreDroppedAndCounted) {
  begin(4);
  const auto one = client();
  store_as(one, {1, 2});
  memory_[slot_bytes + slot_object_offset + 5] ^= std::byte{1};
  restart();
  scan();
  EXPECT_EQ(find({1, 2}), (std::vector{true, false}));
  EXPECT_EQ(status().pages_dropped, 1u);
  restart();
  scan();
  EXPECT_EQ(status().pages_dropped, 0u) << "once";
}

TEST_F(LastingSegmentTest, WhatIsRemovedBeforeItIsFoundDoesNotComeBack) {
  begin(4);
  store_as(client(0, 7), {1, 2});
  store_as(client(0, 8), {3});
  restart();
  EXPECT_EQ(remove_as(client(0, 7), {1}).pages, 0u);
  remove_as(client(0, 8), {2});
  ask_value<page_totals>(segment_, atom::clear_v, namespace_pages{8});
  scan();
  EXPECT_EQ(find({1, 2}, 7), (std::vector{false, true})) << "of its own namespace";
  EXPECT_EQ(find({3}, 8), std::vector{false});
  restart();
  scan();
  EXPECT_EQ(status().pages_kept, 1u);
}

TEST_F(LastingSegmentTest, PagesAreStoredWhileTheRestIsNotFoundYet) {
  begin(6);
  const auto one = client();
  store_as(one, {1, 2, 3, 4});
  remove_as(one, {2});
  restart();
  const auto other = client();
  EXPECT_EQ(reserve_as(other, {8}).places[0].status, place_status::none);
  scan_slots(2);
  EXPECT_EQ(find({1, 3}), (std::vector{true, false}));
  store_as(other, {4}); // In the place of 2.
  scan_slots(4);
  EXPECT_EQ(status().pages, 3u);
  const auto seen = look_up_as(other, lookup({1, 3, 4}));
  EXPECT_EQ(found(seen), (std::vector{true, true, true}));
  EXPECT_EQ(seen.places[2].offset, slot_bytes) << "the one that was stored last";
  store_as(other, {5, 6, 7});
  EXPECT_EQ(status().pages, 6u) << "the place of the other one is free";
}

TEST_F(LastingSegmentTest, NoPageGoesBeforeThoseThatFollowIt) {
  begin(3);
  const auto keep_one = [this](uint64_t number, uint64_t parent) {
    const auto slots = SegmentTest::reserve({number}, parent);
    seal(slots.list[0], 0);
    send_publish(slots);
    run();
  };
  keep_one(1, 0);
  keep_one(2, 1);
  keep_one(3, 2);
  restart();
  scan();
  store_as(client(), {4});
  EXPECT_EQ(find({1, 2, 3, 4}), (std::vector{true, true, false, true}));
}

TEST_F(LastingSegmentTest, APageThatGaveWayIsFoundWhereItIs) {
  begin(3);
  const auto one = client();
  store_as(one, {1, 2, 3});
  remove_as(one, {1}); // Apart from each other: half of the memory may be held at a time.
  remove_as(one, {3});
  auto large = segment_pages{};
  large.list.push_back({key_of(4), {}, 256, 0, 0});
  const auto room = ask_value<segment_slots>(segment_, atom::reserve_v, large);
  ASSERT_EQ(room.list[0].what, segment_slot::state::reserved);
  ASSERT_EQ(figures_->evicted, 0u);
  restart();
  scan();
  const auto seen = look_up_as(client(), lookup({2}));
  ASSERT_EQ(found(seen), std::vector{true});
  EXPECT_NE(seen.places[0].offset, slot_bytes);
  EXPECT_TRUE(is_page(seen.places[0], 2));
  EXPECT_EQ(status().pages_kept, 1u);
}

TEST_F(LastingSegmentTest, WhatAClientOfTheLastNodeReadsStaysAsItIs) {
  begin(4);
  const auto reader = client();
  store_as(reader, {1, 2, 3});
  const auto leased = look_up_as(reader, lookup({1}));
  ASSERT_EQ(found(leased), std::vector{true});
  restart();
  scan();
  const auto writer = client();
  for (auto number = uint64_t{10}; number < 20; ++number)
    store_as(writer, {number});
  EXPECT_TRUE(is_page(leased.places[0], 1));
  EXPECT_EQ(find({2, 3}), (std::vector{false, false}));
  advance(limits::node_lease_time);
  advance(std::chrono::seconds{1});
  for (auto number = uint64_t{20}; number < 24; ++number)
    store_as(writer, {number});
  EXPECT_FALSE(is_page(leased.places[0], 1)) << "its time was over";
}

TEST_F(LastingSegmentTest, WhatNobodyReadsAnyMoreMayGo) {
  begin(2);
  const auto reader = client();
  store_as(reader, {1, 2});
  const auto leased = look_up_as(reader, lookup({1}));
  ASSERT_TRUE(ask_as<page_totals>(reader, atom::release_v, client_ticket{leased.lease}));
  restart();
  scan();
  store_as(client(), {3, 4});
  EXPECT_EQ(find({1, 2, 3, 4}), (std::vector{false, false, true, true}));
}

} // namespace
} // namespace hicache::test
