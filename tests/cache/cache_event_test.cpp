#include "cache/hash/page_hash.hpp"
#include "cache/prefix/cache_event.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <vector>

using namespace hicache;
using testing::ElementsAre;

namespace {

/// A key that starts with the given eight bytes.
page_key key(uint64_t head, uint8_t rest = 0) {
  auto made = page_key{};
  made.bytes.fill(rest);
  for (auto i = 0; i < 8; ++i)
    made.bytes[static_cast<size_t>(i)] = static_cast<uint8_t>(head >> (56 - 8 * i));
  return made;
}

/// Pages `first`..`last` of a path, whose page n holds tokens 2n and 2n + 1.
pages_stored stored(uint64_t first, uint64_t last, cache_medium medium = cache_medium::l1) {
  auto event = pages_stored{.medium = medium, .ns = {}, .parent = {}, .keys = {}, .tokens = {}};
  if (first > 1)
    event.parent = key(first - 1);
  for (auto page = first; page <= last; ++page) {
    event.keys.push_back(key(page));
    event.tokens.push_back(static_cast<token_id>(2 * page));
    event.tokens.push_back(static_cast<token_id>(2 * page + 1));
  }
  return event;
}

/// The same with bigrams, where the token after the last page belongs to it.
pages_stored stored_bigrams(uint64_t first, uint64_t last) {
  auto event = stored(first, last);
  event.tokens.push_back(static_cast<token_id>(2 * last + 2));
  return event;
}

pages_removed removed(std::vector<page_key> keys, cache_medium medium = cache_medium::l1) {
  return {.medium = medium, .keys = std::move(keys)};
}

template <class... Events>
std::vector<cache_event> coalesced(Events... events) {
  auto queue = event_queue{};
  (queue.add(std::move(events)), ...);
  return queue.take();
}

} // namespace

// -- ids (cases H1, H3, H13, E1, E2) ------------------------------------------

TEST(EventId, IsTheFirstEightBytesAsASignedNumber) {
  EXPECT_EQ(event_id(key(0)), 0);
  EXPECT_EQ(event_id(key(1)), 1);
  EXPECT_EQ(event_id(key(0x7fffffffffffffff)), INT64_MAX);
  EXPECT_EQ(event_id(key(0x8000000000000000)), INT64_MIN);
  EXPECT_EQ(event_id(key(0xffffffffffffffff)), -1);
  EXPECT_EQ(event_id(key(0x0102030405060708, 0xff)), 0x0102030405060708);
}

TEST(EventId, IsTheIdThatSglangGivesThePage) {
  const auto id = [](std::vector<token_id> tokens, const page_key* prior = nullptr) {
    return event_id(hash_page(tokens, prior));
  };
  EXPECT_EQ(id({}), -2039914840885289964);
  EXPECT_EQ(id({1}), 7470307888890966271);
  EXPECT_EQ(id({1, 2}), 3817746824117602890);
  const auto first = hash_page(std::vector<token_id>{1, 2}, nullptr);
  EXPECT_EQ(id({3, 4}, &first), -4216701448867210342);
  EXPECT_EQ(id({5, 6}, &first), -429401898661349585);
}

TEST(EventId, TellsNamespacesApart) {
  const auto a = namespace_seed({"", "tenant-a"});
  const auto b = namespace_seed({"", "tenant-b"});
  const auto tokens = std::vector<token_id>{1, 2};
  EXPECT_NE(event_id(hash_page(tokens, &*a)), event_id(hash_page(tokens, &*b)));
  EXPECT_NE(event_id(hash_page(tokens, &*a)), event_id(hash_page(tokens, nullptr)));
}

// -- the queue (case E7) ------------------------------------------------------

TEST(EventQueue, HandsOutWhatWasAddedOnce) {
  auto queue = event_queue{};
  EXPECT_TRUE(queue.empty());
  EXPECT_THAT(queue.take(), ElementsAre());
  queue.add(cache_cleared{});
  queue.add(stored(1, 2));
  EXPECT_FALSE(queue.empty());
  EXPECT_THAT(queue.take(), ElementsAre(cache_cleared{}, stored(1, 2)));
  EXPECT_TRUE(queue.empty());
  EXPECT_THAT(queue.take(), ElementsAre());
}

TEST(EventQueue, JoinsStoresThatContinueEachOther) {
  EXPECT_THAT(coalesced(stored(1, 1), stored(2, 2)), ElementsAre(stored(1, 2)));
  EXPECT_THAT(coalesced(stored(3, 4), stored(5, 7), stored(8, 8)), ElementsAre(stored(3, 8)));
}

TEST(EventQueue, JoinsNothingAcrossATake) {
  auto queue = event_queue{};
  queue.add(stored(1, 1));
  EXPECT_THAT(queue.take(), ElementsAre(stored(1, 1)));
  queue.add(stored(2, 2));
  EXPECT_THAT(queue.take(), ElementsAre(stored(2, 2)));
}

TEST(EventQueue, KeepsStoresOnTwoMediaApart) {
  const auto host = stored(2, 2, cache_medium::l2);
  EXPECT_THAT(coalesced(stored(1, 1), host), ElementsAre(stored(1, 1), host));
}

TEST(EventQueue, KeepsStoresOfTwoNamespacesApart) {
  auto other = stored(2, 2);
  other.ns = {"lora", ""};
  EXPECT_THAT(coalesced(stored(1, 1), other), ElementsAre(stored(1, 1), other));
  other.ns = {"", "tenant"};
  EXPECT_THAT(coalesced(stored(1, 1), other), ElementsAre(stored(1, 1), other));
}

TEST(EventQueue, KeepsStoresApartThatDoNotContinueEachOther) {
  EXPECT_THAT(coalesced(stored(1, 1), stored(3, 3)), ElementsAre(stored(1, 1), stored(3, 3)));
  EXPECT_THAT(coalesced(stored(1, 2), stored(2, 2)), ElementsAre(stored(1, 2), stored(2, 2)));
  EXPECT_THAT(coalesced(stored(1, 1), stored(1, 1)), ElementsAre(stored(1, 1), stored(1, 1)));
}

TEST(EventQueue, JoinsRemovalsFromOneMedium) {
  EXPECT_THAT(coalesced(removed({key(3)}), removed({key(2), key(1)}), removed({key(9)})),
              ElementsAre(removed({key(3), key(2), key(1), key(9)})));
}

TEST(EventQueue, KeepsRemovalsFromTwoMediaApart) {
  const auto host = removed({key(1)}, cache_medium::l2);
  EXPECT_THAT(coalesced(removed({key(2)}), host, removed({key(1)})),
              ElementsAre(removed({key(2)}), host, removed({key(1)})));
}

TEST(EventQueue, KeepsTheOrderOfDifferentFacts) {
  EXPECT_THAT(coalesced(stored(1, 1), removed({key(1)}), cache_cleared{}, stored(2, 2)),
              ElementsAre(stored(1, 1), removed({key(1)}), cache_cleared{}, stored(2, 2)));
  EXPECT_THAT(coalesced(stored(1, 1), removed({key(1)}), stored(2, 2), removed({key(2)})),
              ElementsAre(stored(1, 1), removed({key(1)}), stored(2, 2), removed({key(2)})));
}

TEST(EventQueue, DropsEventsWithoutPages) {
  EXPECT_THAT(coalesced(stored(1, 1), pages_stored{}, removed({}), stored(2, 2)),
              ElementsAre(stored(1, 2)));
}

TEST(EventQueue, BigramPagesShareTheTokenAtTheirBoundary) {
  auto queue = event_queue{1};
  queue.add(stored_bigrams(1, 2));
  queue.add(stored_bigrams(3, 3));
  queue.add(stored_bigrams(4, 6));
  const auto events = queue.take();
  EXPECT_THAT(events, ElementsAre(stored_bigrams(1, 6)));
  EXPECT_THAT(std::get<pages_stored>(events[0]).tokens,
              ElementsAre(2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14));
}
