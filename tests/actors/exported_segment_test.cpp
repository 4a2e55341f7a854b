// A segment that offers pages of L2 beside its own.

#include "actors/index.hpp"
#include "actors/segment.hpp"
#include "backends/cluster/segment_memory.hpp"
#include "base/page_checksum.hpp"
#include "messages/page_header.hpp"
#include "messages/shard_map.hpp"
#include "tests/actors/fakes.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace hicache {
namespace {

using namespace hicache::test;
using namespace std::chrono_literals;

constexpr auto slot_bytes = uint64_t{192};
constexpr auto object_bytes = uint64_t{64};
constexpr auto fingerprint = uint64_t{7};

class ExportedSegmentTest : public actor_test {
protected:
  ~ExportedSegmentTest() override { stop_all(); }

  void start_shard(uint32_t number) { shards_[number] = spawn(index, index_options{10s, &clock}); }

  /// A segment of so many slots, and eight pages of L2, each of which is an object.
  void start(uint64_t slots) {
    if (shards_.empty())
      start_shard(0);
    const auto headers = slots * slot_bytes;
    const auto where = exported_objects{headers, headers + 8 * slot_object_offset, object_bytes, 8};
    memory_.assign(where.objects + 8 * object_bytes, std::byte{0});
    exported_ = std::make_shared<exported_pages>(memory_, where, 1);
    auto options = segment_options{};
    options.mounts.member.member = 1;
    options.mounts.member.fingerprint = fingerprint;
    options.mounts.member.exported = where;
    options.mounts.index = [this] { return view(); };
    options.mounts.index_lost = [](const index_actor&) {};
    options.mounts.index_heard = [](uint64_t) {};
    options.mounts.timeout = 2s;
    options.memory = memory_;
    options.exported = exported_;
    options.figures = figures_;
    options.clock = &clock;
    segment_ = spawn(segment, options);
    exported_->open(
      [this](segment_slots gone) { caf::anon_send(segment_, atom::withdraw_v, std::move(gone)); });
  }

  index_view_ptr view() const {
    auto entries = std::vector<index_view::entry>{};
    for (const auto& [number, shard] : shards_)
      entries.push_back({number, shard, "here"});
    return std::make_shared<const index_view>(entries);
  }

  segment_slot export_page(uint64_t object, uint64_t key) {
    const auto bytes = std::span{memory_}.subspan(
      exported_->objects().objects + object * object_bytes, object_bytes);
    std::ranges::fill(bytes, static_cast<std::byte>(key));
    const auto slot = exported_->export_page(std::array{std::span<const std::byte>{bytes}},
                                             key_of(key), fingerprint);
    EXPECT_TRUE(slot);
    return slot.value_or(segment_slot{});
  }

  void publish(const segment_slots& slots) {
    const auto answer = send_request<key_batch>(segment_, atom::publish_v, slots);
    run();
    EXPECT_TRUE(answer.arrived());
  }

  /// Lends and publishes.
  segment_slot offer(uint64_t object, uint64_t key) {
    const auto slot = export_page(object, key);
    publish({{slot}});
    return slot;
  }

  segment_slot reserve(uint64_t key) {
    const auto pages = segment_pages{{{key_of(key), {}, object_bytes, fingerprint, 0}}};
    return ask_value<segment_slots>(segment_, atom::reserve_v, pages).list.front();
  }

  void reclaim(page_index page) {
    exported_->reclaim(std::array{page});
    run();
  }

  replica_list locate(uint64_t key) {
    const auto shards = view();
    const auto& shard = shards_.at(shards->numbers[shards->keepers_of(key_of(key)).first]);
    return ask_value<placements>(shard, atom::locate_v, key_batch{{key_of(key)}}).replicas.front();
  }

  void expect_offered(uint64_t key, const segment_slot& slot) {
    const auto found = locate(key);
    ASSERT_EQ(found.size(), 1u) << key;
    EXPECT_EQ(found.front(), (replica{1, slot.offset, slot.generation, slot.length}));
  }

  std::map<uint32_t, index_actor> shards_;
  segment_actor segment_;
  std::vector<std::byte> memory_;
  std::shared_ptr<exported_pages> exported_;
  std::shared_ptr<member_figures> figures_ = std::make_shared<member_figures>();
};

TEST_F(ExportedSegmentTest, ExportedPagesAreOfferedUntilTheyAreReclaimed) {
  start(2);
  const auto slot = offer(3, 10);
  expect_offered(10, slot);
  EXPECT_EQ(figures_->pages, 1u);
  EXPECT_EQ(figures_->used_bytes, 0u) << "they take no room of the segment";
  reclaim(3);
  EXPECT_TRUE(locate(10).empty());
  EXPECT_EQ(figures_->pages, 0u);
}

TEST_F(ExportedSegmentTest, ExportedPagesAreNotStoredAsWell) {
  start(2);
  offer(3, 10);
  EXPECT_EQ(reserve(10).what, segment_slot::state::present);
  reclaim(3);
  EXPECT_EQ(reserve(10).what, segment_slot::state::reserved);
}

TEST_F(ExportedSegmentTest, WhatAnotherMemberOffersIsNotExportedIfOnlyNewPagesArePublished) {
  start(2);
  auto other = member_info{};
  other.member = 2;
  ask_value<membership>(shards_[0], atom::mount_v, other);
  ask_value<membership>(shards_[0], atom::publish_v,
                        published_pages{2, 0, {{key_of(10), 0, 1, object_bytes}}});
  const auto slot = export_page(3, 10);
  publish({{slot}, true});
  EXPECT_EQ(locate(10), (replica_list{{2, 0, 1, object_bytes}}));
  EXPECT_FALSE(exported_->is_exported(slot));
}

TEST_F(ExportedSegmentTest, AnExportedPageThatIsGivenUpIsRevoked) {
  start(2);
  const auto slot = offer(3, 10);
  tell(segment_, atom::abort_v, segment_slots{{slot}});
  EXPECT_TRUE(locate(10).empty());
  EXPECT_FALSE(exported_->is_exported(slot));
}

TEST_F(ExportedSegmentTest, StoredPagesAreNotExportedAsWell) {
  start(2);
  const auto stored = reserve(10);
  publish({{stored}});
  const auto exported = offer(3, 10);
  expect_offered(10, stored);
  EXPECT_FALSE(exported_->is_exported(exported));
}

TEST_F(ExportedSegmentTest, ACopyThatArrivesReplacesTheExportedPage) {
  start(2);
  const auto stored = reserve(10);
  const auto exported = offer(3, 10);
  expect_offered(10, exported);
  publish({{stored}});
  expect_offered(10, stored);
  EXPECT_FALSE(exported_->is_exported(exported));
  EXPECT_EQ(figures_->pages, 1u);
}

TEST_F(ExportedSegmentTest, APageThatIsReclaimedBeforeItIsPublishedIsNeverOffered) {
  start(2);
  const auto slot = export_page(3, 10);
  reclaim(3);
  publish({{slot}});
  EXPECT_TRUE(locate(10).empty());
  EXPECT_EQ(figures_->pages, 0u);
}

TEST_F(ExportedSegmentTest, TheNewsOfAnEarlierLendingDoNotEndALaterOne) {
  start(2);
  const auto first = offer(3, 10);
  const auto second = offer(5, 10); // The page came back to L2, at another place.
  EXPECT_FALSE(exported_->is_exported(first));
  expect_offered(10, second);
  tell(segment_, atom::withdraw_v, segment_slots{{first}});
  expect_offered(10, second);
  const auto third = offer(5, 10);
  expect_offered(10, third);
  publish({{third}});
  EXPECT_TRUE(exported_->is_exported(third)) << "told twice";
}

TEST_F(ExportedSegmentTest, WithoutASegmentL2IsExportedAllTheSame) {
  start(0);
  EXPECT_EQ(reserve(11).what, segment_slot::state::full);
  const auto slot = offer(3, 10);
  EXPECT_EQ(slot.offset, 3 * slot_object_offset);
  expect_offered(10, slot);
  tell(segment_, atom::corrupt_v, key_batch{{key_of(10)}});
  expect_offered(10, slot);
}

TEST_F(ExportedSegmentTest, BlockReportsHaveExportedPages) {
  start(2);
  const auto stored = reserve(11);
  publish({{stored}});
  const auto slot = offer(3, 10);
  stop(shards_[0]);
  start_shard(0);
  advance(1s);
  expect_offered(10, slot);
  expect_offered(11, stored);
}

TEST_F(ExportedSegmentTest, ExportedPagesMoveToTheShardsThatKeepThem) {
  start(0);
  auto slots = std::map<uint64_t, segment_slot>{};
  for (auto i = uint64_t{0}; i < 8; ++i)
    slots[20 + i] = offer(i, 20 + i);
  start_shard(1);
  advance(1s);
  for (const auto& [key, slot] : slots)
    expect_offered(key, slot);
}

TEST_F(ExportedSegmentTest, PinsDoNotHoldExportedPages) {
  start(2);
  const auto slot = offer(3, 10);
  const auto pinned = ask_value<page_totals>(segment_, atom::pin_v, page_pins{2, 0, {key_of(10)}});
  EXPECT_EQ(pinned, (page_totals{0, 0, {key_of(10)}}));
  tell(segment_, atom::touch_v, key_batch{{key_of(10)}});
  expect_offered(10, slot);
}

TEST_F(ExportedSegmentTest, DamageToExportedPagesIsFoundOut) {
  start(2);
  const auto good = offer(2, 10);
  const auto bad = offer(3, 11);
  memory_[exported_->objects().objects + 3 * object_bytes + 5] ^= std::byte{1};
  tell(segment_, atom::corrupt_v, key_batch{{key_of(10), key_of(11)}});
  expect_offered(10, good);
  EXPECT_TRUE(locate(11).empty());
  EXPECT_FALSE(exported_->is_exported(bad));
  EXPECT_EQ(state_of<segment_state>(segment_).corrupt, 1u);
}

TEST_F(ExportedSegmentTest, WhatIsOverwrittenMeanwhileIsNoDamage) {
  start(2);
  const auto slot = offer(3, 10);
  exported_->revoke(slot); // The news are on their way.
  tell(segment_, atom::corrupt_v, key_batch{{key_of(10)}});
  EXPECT_EQ(state_of<segment_state>(segment_).corrupt, 0u);
}

TEST_F(ExportedSegmentTest, ClearTakesExportedPagesOfTheNamespace) {
  start(2);
  const auto slot = offer(3, 10);
  EXPECT_EQ(ask_value<page_totals>(segment_, atom::clear_v, namespace_pages{8}), page_totals{});
  expect_offered(10, slot);
  EXPECT_EQ(ask_value<page_totals>(segment_, atom::clear_v, namespace_pages{fingerprint}),
            (page_totals{1, slot_object_offset + object_bytes}));
  EXPECT_TRUE(locate(10).empty());
  EXPECT_FALSE(exported_->is_exported(slot));
}

TEST_F(ExportedSegmentTest, RemoveTakesAnExportedPage) {
  start(2);
  const auto slot = offer(3, 10);
  tell(segment_, atom::remove_v, keys_of(10, 1));
  EXPECT_TRUE(locate(10).empty());
  EXPECT_FALSE(exported_->is_exported(slot));
}

TEST_F(ExportedSegmentTest, ADrainedMemberLendsNothing) {
  start(2);
  const auto stored = reserve(11);
  publish({{stored}});
  const auto slot = offer(3, 10);
  const auto late = export_page(4, 12);
  EXPECT_EQ(ask_value<drain_report>(segment_, atom::drain_v, drain_request{}),
            (drain_report{0, 2}));
  publish({{late}});
  for (const auto key : {10, 11, 12})
    EXPECT_TRUE(locate(static_cast<uint64_t>(key)).empty());
  EXPECT_FALSE(exported_->is_exported(slot));
  EXPECT_FALSE(exported_->begin(5, key_of(13)));
  EXPECT_EQ(figures_->pages, 0u);
}

} // namespace
} // namespace hicache
