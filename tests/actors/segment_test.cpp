// A segment and the index it reports to.

#include "actors/index.hpp"
#include "actors/segment.hpp"
#include "base/limits.hpp"
#include "messages/page_header.hpp"
#include "tests/actors/fakes.hpp"

#include <algorithm>
#include <cstring>
#include <set>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

constexpr auto slot_bytes = uint64_t{192};

class SegmentTest : public actor_test {
protected:
  ~SegmentTest() override { stop_all(); }

  void start_index() { index_ = spawn(index, index_options{10s, &clock}); }

  void start_segment(uint32_t slots, uint64_t member = 1) {
    memory_.assign(slots * slot_bytes, std::byte{0xee});
    auto options = segment_options{};
    options.member.member = member;
    options.member.slot_bytes = slot_bytes;
    options.member.capacity_bytes = memory_.size();
    options.memory = memory_;
    options.index = [this] { return view(); };
    options.index_lost = [this](const index_actor&) { ++index_lost_; };
    options.index_heard = [this](uint64_t digest) { heard_ = digest; };
    options.timeout = 2s;
    segment_ = spawn(segment, options);
  }

  /// The index as the segment sees it: of one shard, unless the test says otherwise.
  virtual index_view_ptr view() const {
    return std::make_shared<const index_view>(index_view{{0}, {index_}, {"here"}});
  }

  segment_slots reserve(std::vector<uint64_t> keys, uint64_t parent = 0) {
    auto pages = segment_pages{};
    for (const auto key : keys) {
      pages.keys.push_back(key_of(key));
      pages.parents.push_back(parent == 0 ? page_key{} : key_of(parent));
    }
    return ask_value<segment_slots>(segment_, atom::reserve_v, pages);
  }

  test::reply<atom::ok> send_publish(segment_slots slots) {
    for (auto& slot : slots.list)
      slot.length = 64;
    return send_request<atom::ok>(segment_, atom::publish_v, slots);
  }

  /// Reserves and publishes.
  void store(std::vector<uint64_t> keys, uint64_t parent = 0) {
    const auto answer = send_publish(reserve(std::move(keys), parent));
    run();
    EXPECT_TRUE(answer.arrived());
  }

  std::vector<replica> locate(uint64_t key) {
    return ask_value<placements>(index_, atom::locate_v, key_batch{{key_of(key)}}).replicas.front();
  }

  bool is_header_cleared(const segment_slot& slot) const {
    const auto header = std::span{memory_}.subspan(slot.offset, page_header_bytes);
    return std::all_of(header.begin(), header.end(), [](std::byte x) { return x == std::byte{0}; });
  }

  index_actor index_;
  segment_actor segment_;
  std::vector<std::byte> memory_;
  int index_lost_ = 0;
  uint64_t heard_ = 0;
};

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
  tell(segment_, atom::touch_v, keys_of(10, 1));
  const auto slots = reserve({12});
  EXPECT_EQ(slots.list[0].what, segment_slot::state::reserved);
  EXPECT_TRUE(is_header_cleared(slots.list[0]));
  EXPECT_TRUE(locate(11).empty()); // 10 was read since.
  EXPECT_EQ(locate(10).size(), 1u);
  EXPECT_EQ(ask_value<rank_counters>(segment_, atom::counters_v).evicted_l3, 1u);
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

// -- several shards -----------------------------------------------------------

class ShardedSegmentTest : public SegmentTest {
protected:
  ~ShardedSegmentTest() override { stop_all(); }

  void start_shard(uint32_t number) { shards_[number] = spawn(index, index_options{10s, &clock}); }

  index_view_ptr view() const override {
    auto view = std::make_shared<index_view>();
    for (const auto& [number, shard] : shards_) {
      view->numbers.push_back(number);
      view->shards.push_back(shard);
      view->addresses.emplace_back("here");
    }
    return view;
  }

  uint32_t keeper_of(uint64_t key) const {
    const auto numbers = view()->numbers;
    return numbers[shard_of(key_of(key), numbers)];
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

// -- what happens while a block report is under way ---------------------------

/// An index that answers announcements when the test says so.
struct slow_index {
  std::vector<published_pages> news;
  std::vector<withdrawn_pages> withdrawn;
  std::deque<caf::response_promise> waiting;
};

caf::behavior run_slow_index(caf::event_based_actor* self, std::shared_ptr<slow_index> log) {
  return {
    [](atom::mount, const member_info&) {
      return membership{true, 10000, 0};
    },
    [](atom::tick, const heartbeat&) {
      return membership{true, 10000, 0};
    },
    [self, log](atom::publish, const published_pages& x) {
      log->news.push_back(x);
      log->waiting.push_back(self->make_response_promise());
      return log->waiting.back();
    },
    [log](atom::withdraw, const withdrawn_pages& x) {
      log->withdrawn.push_back(x);
      return membership{true, 10000, 0};
    },
    [self](const errand& x) { x.run(self); },
  };
}

class BlockReportTest : public SegmentTest {
protected:
  /// A segment with more pages than one message takes, of which the index has none yet.
  void start_with(uint32_t pages) {
    start_segment(pages + 2);
    auto keys = std::vector<uint64_t>(pages);
    for (auto i = uint32_t{0}; i < pages; ++i)
      keys[i] = 1 + i;
    store(keys);
    slow_ = spawn(run_slow_index, log_);
    index_ = caf::actor_cast<index_actor>(slow_);
    advance(1s);
  }

  void answer() {
    ASSERT_FALSE(log_->waiting.empty());
    auto promise = std::move(log_->waiting.front());
    log_->waiting.pop_front();
    tell(slow_, errand{[promise](caf::event_based_actor*) mutable {
           promise.deliver(membership{true, 10000, 0});
         }});
  }

  std::shared_ptr<slow_index> log_ = std::make_shared<slow_index>();
  caf::actor slow_;
};

TEST_F(BlockReportTest, GoesInBatchesOneAfterTheOther) {
  constexpr auto pages = static_cast<uint32_t>(limits::index_batch_keys) + 10;
  start_with(pages);
  ASSERT_EQ(log_->news.size(), 1u);
  EXPECT_EQ(log_->news[0].pages.size(), limits::index_batch_keys);
  answer();
  ASSERT_EQ(log_->news.size(), 2u);
  EXPECT_EQ(log_->news[1].pages.size(), 10u);
  answer();
  EXPECT_EQ(log_->news.size(), 2u);
}

TEST_F(BlockReportTest, PagesPublishedMeanwhileFollow) {
  start_with(10);
  ASSERT_EQ(log_->news.size(), 1u);
  store({500}); // Answered at once: the report will see to it.
  store({501});
  tell(segment_, atom::remove_v, keys_of(501, 1));
  tell(segment_, atom::remove_v, keys_of(1, 1));
  store({502, 503}); // In the slots of 501 and 1: one before and one behind the report.
  EXPECT_EQ(log_->news.size(), 1u);
  while (!log_->waiting.empty())
    answer();
  auto announced = std::set<page_key>{};
  for (const auto& news : log_->news)
    for (const auto& page : news.pages)
      announced.insert(page.key);
  for (const auto key : {500, 502, 503})
    EXPECT_TRUE(announced.contains(key_of(static_cast<uint64_t>(key)))) << key;
  EXPECT_FALSE(announced.contains(key_of(501)));
}

TEST_F(BlockReportTest, PageEvictedBehindTheReportIsWithdrawnAfterIt) {
  start_with(10);
  tell(segment_, atom::remove_v, keys_of(3, 1));
  ASSERT_EQ(log_->withdrawn.size(), 1u);
  EXPECT_EQ(log_->withdrawn[0].keys, std::vector<page_key>{key_of(3)});
  EXPECT_EQ(log_->withdrawn[0].epoch, log_->news[0].epoch);
}

} // namespace
} // namespace hicache
