// A segment and the index it reports to.

#include "base/limits.hpp"
#include "tests/actors/segment_fixture.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

TEST_F(SegmentTest, PublishedPagesAreLocated) {
  start_index();
  start_segment(4);
  const auto slots = reserve({10, 11});
  ASSERT_EQ(slots.list.size(), 2u);
  EXPECT_EQ(slots.list[0].what, segment_slot::state::reserved);
  EXPECT_TRUE(locate(10).empty()); // Not before it is complete.
  const auto answer = send_publish(slots);
  run();
  EXPECT_TRUE(answer.arrived());
  ASSERT_EQ(locate(10).size(), 1u);
  const auto copy = locate(11).front();
  EXPECT_EQ(copy.member, 1u);
  EXPECT_EQ(copy.offset, slots.list[1].offset);
  EXPECT_EQ(copy.generation, slots.list[1].generation);
  EXPECT_EQ(copy.length, 64u);
}

TEST_F(SegmentTest, ReservedSlotsHoldNoReadableHeader) {
  start_index();
  start_segment(2);
  const auto slots = reserve({10});
  EXPECT_TRUE(is_header_cleared(slots.list[0]));
}

TEST_F(SegmentTest, StoredPagesAreNotStoredTwice) {
  start_index();
  start_segment(4);
  store({10});
  EXPECT_EQ(reserve({10}).list[0].what, segment_slot::state::present);
}

TEST_F(SegmentTest, EvictedPagesAreWithdrawn) {
  start_index();
  start_segment(2);
  store({10, 11});
  tell(segment_, atom::touch_v, key_batch{{key_of(10)}});
  const auto slots = reserve({12});
  EXPECT_EQ(slots.list[0].what, segment_slot::state::reserved);
  EXPECT_TRUE(is_header_cleared(slots.list[0]));
  EXPECT_TRUE(locate(11).empty()); // 10 was read since.
  EXPECT_EQ(locate(10).size(), 1u);
  EXPECT_EQ(figures_->evicted, 1u);
}

TEST_F(SegmentTest, PagesWithStoredChildrenStay) {
  start_index();
  start_segment(2);
  store({10});
  store({11}, 10);
  EXPECT_EQ(reserve({12}, 11).list[0].what, segment_slot::state::full);
  EXPECT_EQ(locate(10).size(), 1u);
  EXPECT_EQ(locate(11).size(), 1u);
}

TEST_F(SegmentTest, AbortedSlotsAreFreeAgain) {
  start_index();
  start_segment(1);
  tell(segment_, atom::abort_v, reserve({10}));
  EXPECT_EQ(reserve({11}).list[0].what, segment_slot::state::reserved);
  EXPECT_TRUE(locate(10).empty());
}

TEST_F(SegmentTest, PagesThatAreGivenUpAreWithdrawnIfTheyWerePublishedMeanwhile) {
  start_index();
  start_segment(3);
  const auto slots = reserve({10, 11});
  send_publish(slots);
  tell(segment_, atom::abort_v, slots);
  for (auto i = size_t{0}; i < 2; ++i) {
    EXPECT_TRUE(locate(10 + i).empty());
    EXPECT_TRUE(is_header_cleared(slots.list[i]));
  }
  store({10});
  tell(segment_, atom::abort_v, slots);
  EXPECT_EQ(locate(10).size(), 1u) << "what came later under the same name stays";
}

TEST_F(SegmentTest, WhatAnotherMemberOffersIsFreedIfOnlyNewPagesArePublished) {
  start_index();
  start_segment(3);
  auto other = member_info{};
  other.member = 2;
  ask_value<membership>(index_, atom::mount_v, other);
  ask_value<membership>(index_, atom::publish_v, published_pages{2, 0, {{key_of(10), 0, 1, 64}}});
  auto slots = reserve({10, 11});
  for (const auto& slot : slots.list)
    seal(slot, 0);
  slots.only_new = true;
  EXPECT_EQ(ask_value<key_batch>(segment_, atom::publish_v, slots).keys, std::vector{key_of(10)});
  ASSERT_EQ(locate(10).size(), 1u);
  EXPECT_EQ(locate(10).front().member, 2u);
  EXPECT_EQ(locate(11).front().member, 1u);
  EXPECT_TRUE(is_header_cleared(slots.list[0]));
  EXPECT_EQ(figures_->pages, 1u);
  EXPECT_EQ(figures_->used_bytes, slot_bytes);
  store({10});
  EXPECT_EQ(locate(10).size(), 2u) << "a copy is wanted";
}

TEST_F(SegmentTest, HeldPagesStayUntilTheyAreReleased) {
  start_index();
  start_segment(2);
  store({10, 11});
  const auto held
    = ask_value<segment_slots>(segment_, atom::hold_v, segment_holds{0, {key_of(10), key_of(12)}});
  ASSERT_EQ(held.list.size(), 2u);
  EXPECT_EQ(held.list[0].what, segment_slot::state::present);
  EXPECT_EQ(held.list[0].offset, locate(10).front().offset);
  EXPECT_EQ(held.list[1].what, segment_slot::state::full);
  tell(segment_, atom::touch_v, key_batch{{key_of(11)}});
  store({12});
  EXPECT_EQ(locate(10).size(), 1u) << "page 11 went";
  EXPECT_TRUE(locate(11).empty());
  tell(segment_, atom::release_v, held);
  tell(segment_, atom::touch_v, key_batch{{key_of(12)}});
  store({13});
  EXPECT_TRUE(locate(10).empty());
}

TEST_F(SegmentTest, PagesOfAnotherNamespaceAreNotHeld) {
  start_index();
  start_segment(2);
  store({10});
  const auto held
    = ask_value<segment_slots>(segment_, atom::hold_v, segment_holds{1, {key_of(10)}});
  EXPECT_EQ(held.list[0].what, segment_slot::state::full);
}

TEST_F(SegmentTest, BytesOfAHeldPageThatIsRemovedStayUntilItIsReleased) {
  start_index();
  start_segment(2);
  store({10});
  const auto held
    = ask_value<segment_slots>(segment_, atom::hold_v, segment_holds{0, {key_of(10)}});
  tell(segment_, atom::clear_v, namespace_pages{0});
  EXPECT_TRUE(locate(10).empty());
  EXPECT_EQ(reserve({11}).list[0].what, segment_slot::state::reserved);
  EXPECT_EQ(reserve({12}).list[0].what, segment_slot::state::full);
  tell(segment_, atom::release_v, held);
  EXPECT_EQ(reserve({12}).list[0].what, segment_slot::state::reserved);
}

TEST_F(SegmentTest, RemovedPagesAreWithdrawnAndUnreadable) {
  start_index();
  start_segment(2);
  const auto slots = reserve({10});
  send_publish(slots);
  run();
  memory_[slots.list[0].offset] = std::byte{1};
  EXPECT_TRUE(ask<atom::ok>(segment_, atom::remove_v, keys_of(10, 2)));
  EXPECT_TRUE(locate(10).empty());
  EXPECT_TRUE(is_header_cleared(slots.list[0]));
}

TEST_F(SegmentTest, HeartbeatsKeepItMounted) {
  start_index();
  start_segment(2);
  store({10});
  advance_in_steps(60s, 60);
  EXPECT_EQ(locate(10).size(), 1u);
  EXPECT_EQ(index_lost_, 0);
}

TEST_F(SegmentTest, ForgottenMemberMountsAgainAndReports) {
  start_index();
  start_segment(4);
  store({10, 11});
  clock.advance(11s); // The index's time passes, the segment's heartbeats are late.
  tell(index_, atom::poll_v);
  EXPECT_TRUE(locate(10).empty());
  advance_in_steps(5s, 5);
  ASSERT_EQ(locate(10).size(), 1u);
  EXPECT_EQ(locate(11).size(), 1u);
}

TEST_F(SegmentTest, LeavesTheIndexWhenItsProcessEnds) {
  start_index();
  start_segment(4);
  store({10});
  EXPECT_TRUE(ask<atom::ok>(segment_, atom::terminate_v));
  advance_in_steps(20s, 20);
  EXPECT_TRUE(locate(10).empty());
  EXPECT_EQ(ask_value<index_status>(index_, atom::status_v, status_query{}).members.size(), 0u);
}

TEST_F(SegmentTest, LeavesThoughNoShardAnswers) {
  start_segment(4);
  EXPECT_TRUE(ask<atom::ok>(segment_, atom::terminate_v));
}

TEST_F(SegmentTest, LostIndexIsToldOfEverythingWhenItIsBack) {
  start_index();
  start_segment(4);
  store({10});
  stop(index_);
  index_ = nullptr;
  advance_in_steps(4s, 4);
  EXPECT_EQ(index_lost_, 1);
  store({11}); // Stored all the same, and answered.
  tell(segment_, atom::remove_v, keys_of(10, 1));
  store({12});
  start_index();
  advance_in_steps(4s, 4);
  EXPECT_TRUE(locate(10).empty());
  EXPECT_EQ(locate(11).size(), 1u);
  EXPECT_EQ(locate(12).size(), 1u);
  store({13});
  EXPECT_EQ(locate(13).size(), 1u);
}

TEST_F(SegmentTest, StartsWithoutAnIndex) {
  start_segment(4);
  store({10});
  start_index();
  advance_in_steps(2s, 4);
  EXPECT_EQ(locate(10).size(), 1u);
}

TEST_F(SegmentTest, DeadSegmentIsForgottenAtOnce) {
  start_index();
  start_segment(2);
  store({10});
  stop(segment_);
  EXPECT_TRUE(locate(10).empty());
}

TEST_F(SegmentTest, PassesOnWhatTheIndexSaysOfItsShards) {
  start_index();
  start_segment(2);
  tell(index_, atom::shards_v, uint64_t{77});
  store({10});
  EXPECT_EQ(heard_, 77u);
}

// -- what others ask for ------------------------------------------------------

TEST_F(SegmentTest, PinnedPagesStay) {
  start_index();
  start_segment(2);
  store({10, 11});
  const auto pinned
    = ask_value<page_totals>(segment_, atom::pin_v, page_pins{2, 0, {key_of(10), key_of(99)}});
  EXPECT_EQ(pinned, (page_totals{1, slot_bytes, {key_of(99)}}));
  store({12});
  EXPECT_EQ(locate(10).size(), 1u) << "older than 11, but pinned";
  ask_value<page_totals>(segment_, atom::pin_v, page_pins{1, 5000, {key_of(10)}});
  tell(segment_, atom::touch_v, key_batch{{key_of(12)}});
  clock.advance(5s);
  store({13});
  EXPECT_TRUE(locate(10).empty()) << "its time is over";
  EXPECT_EQ(locate(12).size(), 1u);
}

TEST_F(SegmentTest, AnEndlessSoftPinIsCutToTheLongest) {
  start_index();
  start_segment(2);
  store({10});
  const auto forever = page_pins{1, ~uint64_t{0}, {key_of(10)}};
  EXPECT_EQ(ask_value<page_totals>(segment_, atom::pin_v, forever).pages, 1u);
}

TEST_F(SegmentTest, ClearTakesTheNamespaceOnly) {
  start_index();
  start_segment(3);
  store({10, 11}, 0);
  auto other = segment_pages{{{key_of(12), {}, 64, 7, 0}}};
  send_publish(ask_value<segment_slots>(segment_, atom::reserve_v, other));
  run();
  EXPECT_EQ(ask_value<page_totals>(segment_, atom::clear_v, namespace_pages{7}),
            (page_totals{1, slot_bytes}));
  EXPECT_TRUE(locate(12).empty());
  EXPECT_EQ(locate(10).size(), 1u);
  EXPECT_EQ(figures_->pages, 2u);
}

TEST_F(SegmentTest, DamagedPagesAreFoundOutAndCounted) {
  start_index();
  start_segment(2);
  const auto slots = reserve({10, 11});
  for (const auto& slot : slots.list)
    seal(slot, 0);
  send_publish(slots);
  run();
  tell(segment_, atom::corrupt_v, key_batch{{key_of(10), key_of(11), key_of(12)}});
  EXPECT_EQ(locate(10).size(), 1u) << "what a reader says has to be true";
  memory_[slots.list[0].offset + slot_object_offset] ^= std::byte{1};
  memory_[slots.list[1].offset + 20] ^= std::byte{4};
  tell(segment_, atom::corrupt_v, key_batch{{key_of(10), key_of(11)}});
  EXPECT_TRUE(locate(10).empty());
  EXPECT_TRUE(locate(11).empty());
  advance(3s);
  const auto state = ask_value<index_status>(index_, atom::status_v, status_query{});
  EXPECT_EQ(state.members.front().counters.corrupt, 2u);
}

TEST_F(SegmentTest, DamageToTheNameOfTheNamespaceIsFoundOutToo) {
  start_index();
  start_segment(2);
  const auto slots = reserve({10});
  seal(slots.list[0], 1);
  send_publish(slots);
  run();
  tell(segment_, atom::corrupt_v, key_batch{{key_of(10)}});
  EXPECT_TRUE(locate(10).empty()) << "the header says another one than the writer did";
}

TEST_F(SegmentTest, PagesThatMoveAreAnnouncedAtTheirNewPlace) {
  start_index();
  start_segment(3);
  const auto slots = reserve({10, 11, 12});
  for (const auto& slot : slots.list)
    seal(slot, 0);
  send_publish(slots);
  run();
  tell(segment_, atom::remove_v, keys_of(10, 1));
  tell(segment_, atom::remove_v, keys_of(12, 1));
  const auto large = segment_pages{{{key_of(20), {}, 200, 0, 0}}};
  const auto got = ask_value<segment_slots>(segment_, atom::reserve_v, large);
  EXPECT_EQ(got.list.front().what, segment_slot::state::reserved);
  ASSERT_EQ(locate(11).size(), 1u);
  const auto here = locate(11).front();
  EXPECT_EQ(here.offset, 0u);
  EXPECT_EQ(here.length, 64u);
  const auto slot = segment_slot{key_of(11), segment_slot::state::present, here.offset,
                                 here.generation, here.length};
  EXPECT_TRUE(is_intact(memory_, slot, here.offset + slot_object_offset, 0));
}

/// Copies nothing, says that it did, and keeps what it was asked for.
struct copies_log {
  std::vector<page_copies> asked;
};

replicator_actor::behavior_type fake_replicator(replicator_actor::pointer,
                                                std::shared_ptr<copies_log> log) {
  return {[log](atom::copy, const page_copies& pages, const caf::strong_actor_ptr&) {
    log->asked.push_back(pages);
    return page_totals{pages.pages.size(), 0};
  }};
}

class DrainTest : public SegmentTest {
protected:
  ~DrainTest() override { stop_all(); }

  member_actor other_member() const override { return caf::actor_cast<member_actor>(other_); }

  /// A second member, which would copy.
  void start_other(const std::string& host) {
    auto options = segment_options{};
    options.mounts.member.member = 2;
    options.mounts.member.host = host;
    options.mounts.index = [this] { return view(); };
    options.mounts.index_lost = [](const index_actor&) {};
    options.mounts.index_heard = [](uint64_t) {};
    options.mounts.timeout = 2s;
    options.memory = other_memory_;
    options.replicator = spawn(fake_replicator, log_);
    options.figures = std::make_shared<member_figures>();
    options.clock = &clock;
    other_ = spawn(segment, options);
    run();
  }

  std::vector<std::byte> other_memory_ = std::vector<std::byte>(1024);
  std::shared_ptr<copies_log> log_ = std::make_shared<copies_log>();
  segment_actor other_;
};

TEST_F(DrainTest, MovesWhatIsPinnedOrHotAndWithdrawsTheRest) {
  start_index();
  start_segment(4);
  start_other("elsewhere");
  store({10, 13});
  store({11}, 10);
  store({12}, 11);
  for (auto i = 0; i < 2; ++i)
    tell(segment_, atom::touch_v, key_batch{{key_of(11)}});
  ask_value<page_totals>(segment_, atom::pin_v, page_pins{1, 9000, {key_of(13)}});
  clock.advance(4s);
  EXPECT_EQ(ask_value<drain_report>(segment_, atom::drain_v, drain_request{}),
            (drain_report{3, 4}));
  ASSERT_EQ(log_->asked.size(), 1u);
  EXPECT_EQ(log_->asked[0].source, 1u);
  auto keys = std::vector<page_key>{};
  for (const auto& copied : log_->asked[0].pages) {
    keys.push_back(copied.page.key);
    EXPECT_EQ(copied.pin_ttl_ms, copied.page.key == key_of(13) ? 5000u : 0u);
  }
  EXPECT_EQ(keys, (std::vector{key_of(13), key_of(10), key_of(11)})) << "parents first";
  EXPECT_EQ(log_->asked[0].pages[2].parent, key_of(10));
  for (const auto key : {10, 11, 12, 13})
    EXPECT_TRUE(locate(static_cast<uint64_t>(key)).empty());
  EXPECT_EQ(reserve({20}).list[0].what, segment_slot::state::full);
}

TEST_F(DrainTest, WithoutAnybodyElseEverythingIsWithdrawn) {
  start_index();
  start_segment(2);
  store({10});
  for (auto i = 0; i < 2; ++i)
    tell(segment_, atom::touch_v, key_batch{{key_of(10)}});
  EXPECT_EQ(ask_value<drain_report>(segment_, atom::drain_v, drain_request{}),
            (drain_report{0, 1}));
  EXPECT_TRUE(locate(10).empty());
}

TEST_F(DrainTest, WithoutAnIndexTooADrainEnds) {
  start_segment(2);
  EXPECT_EQ(ask_value<drain_report>(segment_, atom::drain_v, drain_request{}), drain_report{});
}

// -- several shards -----------------------------------------------------------

class ShardedSegmentTest : public SegmentTest {
protected:
  ~ShardedSegmentTest() override { stop_all(); }

  void start_shard(uint32_t number) { shards_[number] = spawn(index, index_options{10s, &clock}); }

  index_view_ptr view() const override {
    auto entries = std::vector<index_view::entry>{};
    for (const auto& [number, shard] : shards_)
      entries.push_back({number, shard, are_apart_ ? "process" + std::to_string(number) : "here"});
    return std::make_shared<const index_view>(entries);
  }

  uint32_t keeper_of(uint64_t key) const {
    const auto shards = view();
    return shards->numbers[shards->keepers_of(key_of(key)).first];
  }

  bool is_offered_by(uint32_t number, uint64_t key) {
    return !ask_value<placements>(shards_.at(number), atom::locate_v, key_batch{{key_of(key)}})
              .replicas.front()
              .empty();
  }

  /// Each page is offered by the shard that keeps its key, and by no other one.
  void expect_in_their_places(const std::vector<uint64_t>& keys) {
    for (const auto key : keys)
      for (const auto& [number, shard] : shards_) {
        if (!shard)
          continue;
        EXPECT_EQ(is_offered_by(number, key), number == keeper_of(key))
          << "page " << key << ", shard " << number;
      }
  }

  std::map<uint32_t, index_actor> shards_;
  /// Each shard is in a process of its own, so that keys have a second keeper.
  bool are_apart_ = false;
  const std::vector<uint64_t> keys_{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25};
};

TEST_F(ShardedSegmentTest, PagesAreAnnouncedAndWithdrawnWhereTheyBelong) {
  for (const auto number : {0, 1, 5})
    start_shard(static_cast<uint32_t>(number));
  start_segment(32);
  store(keys_);
  expect_in_their_places(keys_);
  tell(segment_, atom::remove_v, keys_of(10, 16));
  for (const auto key : keys_)
    EXPECT_FALSE(is_offered_by(keeper_of(key), key));
}

TEST_F(ShardedSegmentTest, WhatTheFirstKeeperRefusesTheSecondForgets) {
  are_apart_ = true;
  for (const auto number : {0, 1})
    start_shard(static_cast<uint32_t>(number));
  start_segment(32);
  auto other = member_info{};
  other.member = 2;
  for (const auto& [number, shard] : shards_)
    ask_value<membership>(shard, atom::mount_v, other);
  for (const auto key : keys_)
    ask_value<membership>(shards_[keeper_of(key)], atom::publish_v,
                          published_pages{2, 0, {{key_of(key), 0, 1, 64}}});
  auto slots = reserve(keys_);
  slots.only_new = true;
  EXPECT_EQ(ask_value<key_batch>(segment_, atom::publish_v, slots).keys.size(), keys_.size());
  expect_in_their_places(keys_);
  EXPECT_EQ(figures_->pages, 0u);
}

TEST_F(ShardedSegmentTest, AShardThatBeginsAnewIsToldOfItsPagesOnly) {
  for (const auto number : {0, 1})
    start_shard(static_cast<uint32_t>(number));
  start_segment(32);
  store(keys_);
  stop(shards_[1]);
  shards_[1] = nullptr;
  advance_in_steps(4s, 4);
  EXPECT_EQ(index_lost_, 1);
  expect_in_their_places(keys_);
  store({30, 31, 32, 33, 34, 35}); // Those of the lost shard are stored, too.
  start_shard(1);
  advance_in_steps(4s, 4);
  expect_in_their_places(keys_);
  expect_in_their_places({30, 31, 32, 33, 34, 35});
}

TEST_F(ShardedSegmentTest, KeysMoveToAShardThatComesAndFromOneThatGoes) {
  for (const auto number : {0, 1})
    start_shard(static_cast<uint32_t>(number));
  start_segment(32);
  store(keys_);
  start_shard(2);
  advance_in_steps(3s, 1);
  expect_in_their_places(keys_);
  shards_.erase(0);
  advance_in_steps(3s, 1);
  expect_in_their_places(keys_);
  store({40, 41, 42, 43});
  expect_in_their_places({40, 41, 42, 43});
}

} // namespace
} // namespace hicache
