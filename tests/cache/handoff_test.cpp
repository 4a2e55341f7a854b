#include "cache/handoff/handoff_arrival.hpp"
#include "cache/handoff/handoff_cut.hpp"
#include "cache/handoff/handoff_exports.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace hicache {
namespace {

using testing::ElementsAre;

pool_shape shape_of(uint32_t heads) {
  auto shape = pool_shape{};
  shape.layers = 3;
  shape.kv_heads = heads;
  shape.head_dim = 8;
  shape.v_head_dim = 8;
  shape.element_bytes = 2;
  shape.page_size = 4;
  return shape;
}

// -- cut ----------------------------------------------------------------------------

TEST(HandoffCutTest, ReceiversOfOneRankReadAllSenders) {
  const auto cut = handoff_cut::between(4, 2, 1);
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->heads(), 2U);
  EXPECT_EQ(cut->objects(), 1U);
  EXPECT_THAT(cut->sources(0),
              ElementsAre(handoff_source{0, 0, {0, 2}}, handoff_source{1, 0, {2, 2}}));
}

TEST(HandoffCutTest, ReceiversOfMoreRanksReadPartsOfASender) {
  const auto cut = handoff_cut::between(4, 1, 2);
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->objects(), 2U);
  EXPECT_THAT(cut->sources(0), ElementsAre(handoff_source{0, 0, {0, 2}}));
  EXPECT_THAT(cut->sources(1), ElementsAre(handoff_source{0, 1, {0, 2}}));
  EXPECT_EQ(cut->heads_of(1), (head_range{2, 2}));
}

TEST(HandoffCutTest, SplitsThatDoNotDivideEachOtherMeetInSmallerObjects) {
  // Three and two heads per rank.
  const auto cut = handoff_cut::between(6, 2, 3);
  ASSERT_TRUE(cut);
  EXPECT_EQ(cut->heads(), 1U);
  EXPECT_THAT(cut->sources(1),
              ElementsAre(handoff_source{0, 2, {0, 1}}, handoff_source{1, 0, {1, 1}}));
}

TEST(HandoffCutTest, EveryHeadComesOnceFromARankThatHasIt) {
  for (const auto heads : {1U, 2U, 4U, 8U})
    for (const auto senders : {1U, 2U, 4U, 8U})
      for (const auto receivers : {1U, 2U, 4U, 8U}) {
        const auto cut = handoff_cut::between(heads, senders, receivers);
        ASSERT_TRUE(cut);
        const auto from = *split_heads(heads, senders);
        const auto to = *split_heads(heads, receivers);
        for (auto rank = 0U; rank < receivers; ++rank) {
          auto next = 0U;
          for (const auto& source : cut->sources(rank)) {
            EXPECT_EQ(source.heads.first, next);
            next += source.heads.count;
            EXPECT_EQ(to.part_of(rank) * to.heads + source.heads.first,
                      from.part_of(source.rank) * from.heads + cut->heads_of(source.object).first);
          }
          EXPECT_EQ(next, to.heads);
        }
      }
}

TEST(HandoffCutTest, ReceiversSpreadOverSendersOfTheSameHeads) {
  const auto cut = handoff_cut::between(1, 4, 4);
  auto ranks = std::set<uint32_t>{};
  for (auto rank = 0U; rank < 4; ++rank)
    ranks.insert(cut->sources(rank).front().rank);
  EXPECT_EQ(ranks.size(), 4U);
}

TEST(HandoffCutTest, HeadsThatCannotBeSplitAreRefused) {
  EXPECT_FALSE(handoff_cut::between(4, 1, 3));
  EXPECT_FALSE(handoff_cut::between(4, 3, 1));
  EXPECT_FALSE(handoff_cut::between(4, 1, 0));
  EXPECT_FALSE(handoff_cut::between(0, 1, 1));
}

TEST(HandoffCutTest, RowsOfSomeHeadsAreApartAndOfAllHeadsTogether) {
  const auto shape = shape_of(2);
  auto memory = std::vector<std::byte>(4096);
  const auto base = reinterpret_cast<uint64_t>(memory.data());
  auto pool = device_layers{shape, 4, {}};
  for (auto i = uint64_t{0}; i < 6; ++i)
    pool.buffers.push_back({base + i * 512, 128, 32});
  const auto all = handoff_rows(pool, 1, 2, {0, 2}, 3);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].data(), memory.data() + 512 + 256);
  EXPECT_EQ(all[0].size(), 96U);
  EXPECT_EQ(all[1].data(), memory.data() + 4 * 512 + 256);
  const auto second = handoff_rows(pool, 1, 2, {1, 1}, 3);
  ASSERT_EQ(second.size(), 6U);
  EXPECT_EQ(second[0].data(), memory.data() + 512 + 256 + 16);
  EXPECT_EQ(second[1].data(), second[0].data() + 32);
  EXPECT_EQ(second[0].size(), 16U);
  EXPECT_EQ(handoff_object_bytes(shape, 1, 3), 6U * 16);
}

// -- exports ------------------------------------------------------------------------

/// Slots of a page of one of two heads: 64 bytes of rows for K and V each, and a header.
constexpr auto slot_bytes = uint64_t{256};

class HandoffExportsTest : public testing::Test {
protected:
  // A model of two heads on one rank.
  handoff_exports exports_{shape_of(2), 2, 1, slot_bytes * 3 * 2 * 5};
};

TEST_F(HandoffExportsTest, AHandoffHasASlotForEachLayerPageAndObject) {
  const auto opened = exports_.open(7, 1, 13, 2);
  ASSERT_TRUE(opened);
  const auto& place = (*opened)->place;
  EXPECT_EQ(place.pages, 3U);
  EXPECT_EQ(place.objects, 2U);
  EXPECT_EQ(place.slot_bytes, slot_bytes);
  auto slots = std::set<uint64_t>{};
  for (auto layer = 0U; layer < 3; ++layer)
    for (auto page = 0U; page < 3; ++page)
      for (auto object = 0U; object < 2; ++object)
        slots.insert(place.slot(layer, page, object));
  EXPECT_EQ(slots.size(), (*opened)->slots());
  EXPECT_EQ(*slots.rbegin() + 1, (*opened)->slots());
  EXPECT_EQ(exports_.used_bytes(), slot_bytes * 18);
}

TEST_F(HandoffExportsTest, MemoryThatIsOccupiedIsFreeLater) {
  ASSERT_TRUE(exports_.open(1, 0, 16, 2));
  EXPECT_EQ(exports_.open(2, 0, 8, 2).error().code, ec::limit_reached);
  exports_.close(1);
  EXPECT_EQ(exports_.used_bytes(), 0U);
  EXPECT_TRUE(exports_.open(2, 0, 8, 2));
  exports_.close(3); // Not open.
  EXPECT_GT(exports_.used_bytes(), 0U);
}

TEST_F(HandoffExportsTest, WhatCanNeverBeIsASentence) {
  EXPECT_EQ(exports_.open(1, 0, 21, 2).error().code, ec::invalid_argument);
  EXPECT_EQ(exports_.open(1, 0, UINT64_MAX, 2).error().code, ec::invalid_argument);
  EXPECT_EQ(exports_.open(1, 2, 8, 2).error().code, ec::invalid_argument);
  EXPECT_NE(exports_.open(1, 0, 8, 3).error().detail.find("KV heads"), std::string::npos);
  ASSERT_TRUE(exports_.open(1, 0, 8, 2));
  EXPECT_EQ(exports_.open(1, 0, 8, 2).error().code, ec::invalid_argument);
  EXPECT_EQ(exports_.used_bytes(), slot_bytes * 12);
}

TEST_F(HandoffExportsTest, ASlotThatIsUsedAgainHasAnotherGenerationAndName) {
  const auto first = (*exports_.open(1, 0, 8, 2))->generation;
  exports_.close(1);
  EXPECT_NE((*exports_.open(1, 0, 8, 2))->generation, first);
  EXPECT_NE(handoff_key(1, 2, 3), handoff_key(1, 2, 4));
  EXPECT_NE(handoff_key(1, 2, 3), handoff_key(1, 3, 3));
  EXPECT_NE(handoff_key(1, 2, 3), handoff_key(2, 2, 3));
}

TEST_F(HandoffExportsTest, PagesAreStagedOnceWhenTheyAreComplete) {
  ASSERT_TRUE(exports_.open(1, 1, 14, 1));
  const auto stage = [this](uint32_t layer, uint64_t tokens) {
    const auto range = exports_.stage(1, layer, tokens);
    return std::pair{range.first, range.end};
  };
  EXPECT_EQ(stage(0, 3), std::pair(0UL, 0UL)) << "the receiver has it";
  EXPECT_EQ(stage(0, 9), std::pair(0UL, 1UL));
  EXPECT_EQ(stage(0, 13), std::pair(1UL, 2UL));
  EXPECT_EQ(stage(0, 14), std::pair(2UL, 3UL)) << "the last page is complete with the prompt";
  EXPECT_EQ(stage(0, 14), std::pair(3UL, 3UL));
  EXPECT_EQ(stage(0, 9), std::pair(3UL, 3UL)) << "computed again";
  EXPECT_EQ(stage(2, 14), std::pair(0UL, 3UL)) << "each layer by itself";
  EXPECT_EQ(exports_.find(1)->staged, (std::vector<uint64_t>{3, 0, 3}));
}

TEST(HandoffRowsTest, TheLastPageHasTheRestOfTheRows) {
  EXPECT_EQ(handoff_row_count(14, 2, 4), 4U);
  EXPECT_EQ(handoff_row_count(14, 3, 4), 2U);
  EXPECT_EQ(handoff_page_count(14, 1, 4), 3U);
  EXPECT_EQ(handoff_page_count(14, 9, 4), 0U);
}

// -- arrival ------------------------------------------------------------------------

using part = handoff_arrival::part;

TEST(HandoffArrivalTest, LayersAreReadInOrderAsFarAsTheyAreAnnounced) {
  auto arrival = handoff_arrival{2, 5};
  EXPECT_EQ(arrival.next(2), std::nullopt);
  arrival.announce(0, 3);
  arrival.announce(1, 1);
  EXPECT_EQ(arrival.next(2), (part{0, 0, 2}));
  EXPECT_TRUE(arrival.is_reading());
  EXPECT_EQ(arrival.next(2), std::nullopt) << "one read at a time";
  arrival.finish({});
  EXPECT_EQ(arrival.next(2), (part{0, 2, 3}));
  arrival.finish({});
  EXPECT_EQ(arrival.next(2), (part{1, 0, 1}));
  arrival.finish({});
  EXPECT_EQ(arrival.next(2), std::nullopt);
  EXPECT_EQ(arrival.missing(), 6U);
  arrival.announce(0, 2); // Late.
  EXPECT_EQ(arrival.next(2), std::nullopt);
  arrival.announce(0, 5);
  arrival.announce(1, 5);
  while (arrival.next(2))
    arrival.finish({});
  EXPECT_EQ(arrival.missing(), 0U);
  EXPECT_TRUE(arrival.is_over());
}

TEST(HandoffArrivalTest, ALateReadIsRepeatedAndAFailedOneEndsIt) {
  auto arrival = handoff_arrival{1, 2};
  arrival.announce(0, 2);
  ASSERT_EQ(arrival.next(9), (part{0, 0, 2}));
  arrival.finish({ec::deadline_exceeded, {}});
  EXPECT_FALSE(arrival.is_over());
  ASSERT_EQ(arrival.next(9), (part{0, 0, 2}));
  arrival.finish({ec::corrupt_page, "a"});
  EXPECT_TRUE(arrival.is_over());
  EXPECT_EQ(arrival.missing(), 2U);
  arrival.fail({ec::not_found, "b"});
  EXPECT_EQ(arrival.failure().detail, "a") << "the first reason counts";
  EXPECT_EQ(arrival.next(9), std::nullopt);
}

TEST(HandoffArrivalTest, AFailureDuringAReadStillLetsItEnd) {
  auto arrival = handoff_arrival{1, 2};
  arrival.announce(0, 2);
  ASSERT_TRUE(arrival.next(1));
  arrival.fail({ec::peer_unreachable, {}});
  EXPECT_TRUE(arrival.is_reading());
  arrival.finish({});
  EXPECT_FALSE(arrival.is_reading());
  EXPECT_EQ(arrival.next(1), std::nullopt);
}

} // namespace
} // namespace hicache
