#include "base/limits.hpp"
#include "base/mix.hpp"
#include "cache/store/index_table.hpp"
#include "tests/cache_store/test_members.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <utility>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using test::key_of;
using test::member;

constexpr auto start = time_point{};

announced_page page(uint64_t number, uint64_t offset = 0, uint32_t length = 100) {
  return {key_of(number), offset, 1, length};
}

bool publish(index_table& table, uint64_t id, std::vector<announced_page> pages,
             uint64_t epoch = 1) {
  return table.publish(id, epoch, pages).has_value();
}

/// The ids of the members that hold a page.
std::vector<uint64_t> holders(const index_table& table, uint64_t number) {
  auto ids = std::vector<uint64_t>{};
  const auto located = table.locate(std::vector{key_of(number)});
  for (const auto& replica : located.of(0))
    ids.push_back(table.find(replica.member)->member);
  return ids;
}

TEST(IndexTableTest, LocatesEachKeyInTheOrderAskedFor) {
  auto table = index_table{};
  const auto handle = table.mount(member(1), start);
  ASSERT_TRUE(handle);
  ASSERT_TRUE(publish(table, 1, {page(1, 1000, 10), page(2, 2000, 20)}));
  const auto located = table.locate(std::vector{key_of(2), key_of(9), key_of(1)});
  ASSERT_EQ(located.keys(), 3u);
  ASSERT_EQ(located.of(0).size(), 1u);
  EXPECT_EQ(located.of(0)[0], (page_replica{handle->handle, 2000, 1, 20}));
  EXPECT_TRUE(located.of(1).empty());
  EXPECT_EQ(located.of(2)[0].offset, 1000u);
  EXPECT_EQ(*table.find(handle->handle), member(1));
  EXPECT_EQ(table.find(99), nullptr);
}

/// The members that shall keep a page that all of these have.
std::set<uint64_t> highest(uint64_t number, std::vector<uint64_t> ids) {
  std::ranges::sort(ids, std::greater{},
                    [&](uint64_t id) { return mix(first_word(key_of(number)), id); });
  ids.resize(std::min(ids.size(), limits::replicas_per_key));
  return {ids.begin(), ids.end()};
}

std::vector<uint64_t> ids_to(uint64_t last) {
  auto ids = std::vector<uint64_t>(last);
  std::iota(ids.begin(), ids.end(), 1);
  return ids;
}

TEST(IndexTableTest, ReplicasComeInOrderOfAnnouncementAndAreBounded) {
  auto table = index_table{};
  const auto count = limits::replicas_per_key + 1;
  const auto kept = highest(1, ids_to(count));
  auto expected = std::vector<uint64_t>{};
  for (uint64_t id = 1; id <= count; ++id) {
    table.mount(member(id), start);
    publish(table, id, {page(1)});
    if (kept.contains(id))
      expected.push_back(id);
  }
  EXPECT_EQ(holders(table, 1), expected);
  EXPECT_EQ(table.counters().refused, 1u);
  EXPECT_EQ(table.counters().keys, 1u);
  EXPECT_EQ(table.counters().replicas, limits::replicas_per_key);
}

/// Mounts one member more than page 1 may have copies.
/// @returns the members whose copies stay, and the one whose copy does not
std::pair<std::set<uint64_t>, uint64_t> mount_one_too_many(index_table& table) {
  const auto ids = ids_to(limits::replicas_per_key + 1);
  for (const auto id : ids)
    table.mount(member(id), start);
  auto kept = highest(1, ids);
  const auto lowest = *std::ranges::find_if(ids, [&](uint64_t x) { return !kept.contains(x); });
  return {std::move(kept), lowest};
}

TEST(IndexTableTest, SaysWhichPagesItRefusesAndWhichGaveWay) {
  auto table = index_table{};
  const auto [kept, lowest] = mount_one_too_many(table);
  for (const auto id : kept)
    EXPECT_TRUE(table.publish(id, 1, std::vector{page(1)})->empty());
  EXPECT_EQ(table.publish(lowest, 1, std::vector{page(1), page(2)}), std::vector{key_of(1)});
  const auto best = *kept.begin();
  EXPECT_TRUE(table.publish(best, 1, std::vector{page(1)})->empty()) << "it has been there before";
  table.withdraw(best, 1, std::vector{key_of(1)});
  EXPECT_TRUE(table.publish(lowest, 1, std::vector{page(1)})->empty());
  EXPECT_TRUE(table.take_displaced(lowest, 10).empty());
  EXPECT_TRUE(table.publish(best, 1, std::vector{page(1)})->empty());
  EXPECT_EQ(table.take_displaced(lowest, 10), std::vector{key_of(1)});
  EXPECT_TRUE(table.take_displaced(lowest, 10).empty()) << "each once";
  EXPECT_EQ(table.counters().refused, 2u);
}

TEST(IndexTableTest, OnlyNewPagesAreRefusedIfAnotherMemberOffersThem) {
  auto table = index_table{};
  for (const auto id : ids_to(3))
    table.mount(member(id), start);
  const auto refused = [&table](uint64_t id, const std::vector<announced_page>& pages) {
    return *table.publish(id, 1, pages, false, true);
  };
  EXPECT_TRUE(refused(1, {page(1), page(2)}).empty());
  EXPECT_EQ(refused(2, {page(1), page(3)}), std::vector{key_of(1)});
  EXPECT_EQ(holders(table, 1), std::vector{uint64_t{1}});
  EXPECT_TRUE(refused(1, {page(1, 4096)}).empty()) << "it is its own page, at another place";
  EXPECT_EQ(table.counters().refused, 0u) << "there is room for it";
  publish(table, 3, {page(1)});
  EXPECT_EQ(holders(table, 1), (std::vector<uint64_t>{1, 3})) << "a copy";
  EXPECT_TRUE(refused(3, {page(1)}).empty()) << "it has been there before";
  ASSERT_TRUE(table.suspend(1));
  EXPECT_TRUE(refused(2, {page(2)}).empty()) << "nobody can read it from a member that is gone";
}

TEST(IndexTableTest, APageThatGaveWayAndWasTakenAgainIsKept) {
  auto table = index_table{};
  const auto [kept, lowest] = mount_one_too_many(table);
  publish(table, lowest, {page(1)});
  for (const auto id : kept)
    publish(table, id, {page(1)});
  table.withdraw(*kept.begin(), 1, std::vector{key_of(1)});
  publish(table, lowest, {page(1)});
  EXPECT_TRUE(table.take_displaced(lowest, 10).empty());
}

TEST(IndexTableTest, BothKeepersOfAKeyKeepTheSameCopiesWhateverTheyHearFirst) {
  for (auto seed = uint64_t{0}; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    auto random = std::mt19937_64{seed};
    auto keepers = std::array<index_table, 2>{};
    auto ids = ids_to(2 * limits::replicas_per_key);
    for (auto& keeper : keepers) {
      for (const auto id : ids)
        keeper.mount(member(id), start);
      std::ranges::shuffle(ids, random);
      for (const auto id : ids)
        publish(keeper, id, {page(1)});
    }
    // What one of them does not keep, its owner withdraws from both.
    const auto kept = highest(1, ids);
    for (auto& keeper : keepers)
      for (const auto id : ids) {
        const auto gone = keeper.take_displaced(id, 10);
        EXPECT_TRUE(gone.empty() || !kept.contains(id)) << id;
        for (auto& other : keepers)
          other.withdraw(id, 1, gone);
      }
    for (const auto& keeper : keepers) {
      const auto found = holders(keeper, 1);
      EXPECT_EQ(std::set<uint64_t>(found.begin(), found.end()), kept);
    }
  }
}

TEST(IndexTableTest, TellsOneHolderOfACopyThatWentWithItsMember) {
  auto table = index_table{};
  for (uint64_t id : {1, 2, 3})
    table.mount(member(id), start);
  publish(table, 1, {page(1), page(2), page(3), page(4)});
  publish(table, 2, {page(1), page(2), page(3)});
  publish(table, 3, {page(1), page(2)});
  table.withdraw(1, 1, std::vector{key_of(3)});
  table.drop(1);
  EXPECT_TRUE(table.take_lost().empty()) << "nothing was reaped yet";
  while (table.expire_replicas(1))
    continue;
  auto lost = table.take_lost();
  ASSERT_EQ(lost.size(), 2u) << "3 was withdrawn, and 4 nobody has";
  for (const auto& copy : lost)
    EXPECT_TRUE((copy.key == key_of(1) || copy.key == key_of(2))
                && (copy.holder == 2 || copy.holder == 3));
  EXPECT_TRUE(table.take_lost().empty()) << "told once";
  // Whoever keeps track of the page tells the same one.
  auto other = index_table{};
  for (uint64_t id : {3, 2, 1}) {
    other.mount(member(id), start);
    publish(other, id, {page(2), page(1)});
  }
  other.drop(1);
  EXPECT_FALSE(other.expire_replicas(10));
  auto told = other.take_lost();
  const auto by_key = [](const auto& a, const auto& b) { return a.key.bytes < b.key.bytes; };
  std::sort(lost.begin(), lost.end(), by_key);
  std::sort(told.begin(), told.end(), by_key);
  EXPECT_EQ(told, lost);
}

TEST(IndexTableTest, ACopyThatIsAnnouncedAgainIsNotLost) {
  auto table = index_table{};
  for (uint64_t id : {1, 2}) {
    table.mount(member(id), start);
    publish(table, id, {page(1), page(2)});
  }
  table.mount(member(1, 2), start);
  publish(table, 1, {page(1)}, 2);
  EXPECT_FALSE(table.expire_replicas(10));
  EXPECT_EQ(table.take_lost(), (std::vector{lost_copy{2, key_of(2)}}));
}

TEST(IndexTableTest, ListsMembersInPartsByTheirIds) {
  auto table = index_table{};
  for (uint64_t id : {30, 10, 20})
    table.mount(member(id), start);
  const auto ids = [&](uint64_t from, size_t most) {
    auto found = std::vector<uint64_t>{};
    for (const auto& x : table.members(from, most))
      found.push_back(x.member.member);
    return found;
  };
  EXPECT_EQ(ids(0, 2), (std::vector<uint64_t>{10, 20}));
  EXPECT_EQ(ids(21, 2), (std::vector<uint64_t>{30}));
  EXPECT_EQ(ids(31, 2), std::vector<uint64_t>{});
  EXPECT_EQ(table.member(20)->member.member, 20u);
  EXPECT_FALSE(table.member(21));
}

TEST(IndexTableTest, AnnouncingAgainReplaces) {
  auto table = index_table{};
  table.mount(member(1), start);
  publish(table, 1, {page(1, 10, 500)});
  publish(table, 1, {{key_of(1), 20, 2, 300}});
  const auto located = table.locate(std::vector{key_of(1)});
  ASSERT_EQ(located.of(0).size(), 1u);
  EXPECT_EQ(located.of(0)[0], (page_replica{0, 20, 2, 300}));
  EXPECT_EQ(table.counters().bytes, 300u);
}

announced_page on_disk(uint64_t number, uint32_t length = 100) {
  return page(number, disk_offset, length);
}

TEST(IndexTableTest, PagesOnDiskAreCountedApart) {
  auto table = index_table{};
  table.mount(member(1), start);
  table.publish(1, 1, std::vector{page(1, 0, 10), on_disk(2)});
  table.publish(1, 1, std::vector{on_disk(3)}, true);
  EXPECT_EQ(table.locate(std::vector{key_of(2)}).of(0)[0].offset, disk_offset);
  const auto expect
    = [&table](uint64_t replicas, uint64_t bytes, uint64_t disk_replicas, uint64_t disk_bytes) {
        const auto now = table.members(0, 1)[0];
        EXPECT_EQ(now.replicas, replicas);
        EXPECT_EQ(now.bytes, bytes);
        EXPECT_EQ(now.disk_replicas, disk_replicas);
        EXPECT_EQ(now.disk_bytes, disk_bytes);
        EXPECT_EQ(table.counters().disk_replicas, disk_replicas);
        EXPECT_EQ(table.counters().disk_bytes, disk_bytes);
      };
  expect(1, 10, 1, 100);
  EXPECT_EQ(table.counters().replicas, 3u);
  publish(table, 1, {on_disk(1, 10)}); // Evicted.
  expect(0, 0, 2, 110);
  publish(table, 1, {page(2, 64)}); // Recalled.
  expect(1, 100, 1, 10);
  table.withdraw(1, 1, std::vector{key_of(1)});
  expect(1, 100, 0, 0);
  table.suspend(1);
  EXPECT_EQ(table.counters().replicas, 0u);
}

TEST(IndexTableTest, OnlyNewPagesAreTakenIfOthersHaveThemOnDiskAlone) {
  auto table = index_table{};
  for (const auto id : ids_to(3))
    table.mount(member(id), start);
  publish(table, 1, {on_disk(1)});
  EXPECT_TRUE(table.publish(2, 1, std::vector{page(1)}, false, true)->empty());
  EXPECT_EQ(table.publish(3, 1, std::vector{page(1)}, false, true), std::vector{key_of(1)});
}

TEST(IndexTableTest, ReplicasOnDiskGiveWayToThoseInMemory) {
  auto table = index_table{};
  const auto [kept, lowest] = mount_one_too_many(table);
  const auto best = *kept.begin();
  for (const auto id : kept)
    publish(table, id, {id == best ? on_disk(1) : page(1)});
  EXPECT_TRUE(table.publish(lowest, 1, std::vector{page(1)})->empty());
  EXPECT_EQ(table.take_displaced(best, 10), std::vector{key_of(1)});
  EXPECT_EQ(table.publish(best, 1, std::vector{on_disk(1)}), std::vector{key_of(1)});
}

TEST(IndexTableTest, AReplicaOnDiskIsNoCopy) {
  auto table = index_table{};
  for (const auto id : ids_to(3))
    table.mount(member(id), start);
  publish(table, 1, {page(1), on_disk(2), page(3)});
  publish(table, 2, {on_disk(1), page(2), on_disk(3)});
  publish(table, 3, {page(1)});
  table.drop(1);
  EXPECT_FALSE(table.expire_replicas(10));
  EXPECT_EQ(table.take_lost(), (std::vector{lost_copy{3, key_of(1)}}))
    << "of page 2 nothing is lost, and nobody has a copy of page 3";
}

TEST(IndexTableTest, PagesOfTheSecondKeeperAreLocatedButCountedApart) {
  auto table = index_table{};
  for (uint64_t id : {1, 2})
    table.mount(member(id), start);
  table.publish(1, 1, std::vector{page(1, 0, 100), page(2, 0, 10)});
  table.publish(1, 1, std::vector{page(3, 0, 1000)}, true);
  table.publish(2, 1, std::vector{page(3, 0, 1000)}, true);
  EXPECT_EQ(holders(table, 3), (std::vector<uint64_t>{1, 2}));
  auto counters = table.counters();
  EXPECT_EQ(counters.keys, 3u);
  EXPECT_EQ(counters.second_keys, 1u);
  EXPECT_EQ(counters.replicas, 4u);
  EXPECT_EQ(counters.second_replicas, 2u);
  EXPECT_EQ(counters.second_bytes, 2000u);
  EXPECT_EQ(table.members(0, 10)[0].replicas, 2u);
  EXPECT_EQ(table.members(0, 10)[0].bytes, 110u);
  EXPECT_EQ(table.members(0, 10)[1].replicas, 0u);
  // The shards changed: another keeper comes first now.
  table.publish(1, 1, std::vector{page(3, 0, 1000)});
  EXPECT_EQ(table.counters().second_keys, 0u) << "as the first of its records says";
  EXPECT_EQ(table.counters().second_replicas, 1u);
  table.withdraw(1, 1, std::vector{key_of(3)});
  EXPECT_EQ(table.counters().second_keys, 1u);
  table.drop(2);
  counters = table.counters();
  EXPECT_EQ(counters.second_replicas, 0u);
  EXPECT_EQ(counters.second_bytes, 0u);
  EXPECT_EQ(counters.bytes, 110u);
  table.expire_replicas(10);
  EXPECT_EQ(table.counters().second_keys, 0u);
}

TEST(IndexTableTest, IsPartialUntilEachMemberHasSentAHeartbeat) {
  auto table = index_table{};
  EXPECT_FALSE(table.is_partial());
  for (uint64_t id : {1, 2})
    table.mount(member(id), start);
  table.heartbeat(1, 1, start);
  table.heartbeat(1, 1, start);
  EXPECT_TRUE(table.is_partial());
  table.drop(2);
  EXPECT_FALSE(table.is_partial());
  table.mount(member(1, 2), start);
  EXPECT_TRUE(table.is_partial()) << "a new epoch, a new report";
  table.heartbeat(1, 1, start);
  EXPECT_TRUE(table.is_partial());
  table.heartbeat(1, 2, start);
  EXPECT_FALSE(table.is_partial());
}

TEST(IndexTableTest, WithdrawRemovesOnlyTheMembersOwn) {
  auto table = index_table{};
  for (uint64_t id : {1, 2, 3}) {
    table.mount(member(id), start);
    publish(table, id, {page(1), page(2)});
  }
  EXPECT_TRUE(table.withdraw(2, 1, std::vector{key_of(1), key_of(77)}));
  EXPECT_EQ(holders(table, 1), (std::vector<uint64_t>{1, 3}));
  EXPECT_TRUE(table.withdraw(1, 1, std::vector{key_of(1)})) << "the first of the list";
  EXPECT_EQ(holders(table, 1), (std::vector<uint64_t>{3}));
  EXPECT_TRUE(table.withdraw(3, 1, std::vector{key_of(1)}));
  EXPECT_TRUE(holders(table, 1).empty());
  EXPECT_EQ(table.counters().keys, 1u);
}

TEST(IndexTableTest, ANewEpochDropsAllOfTheOldOne) {
  auto table = index_table{};
  table.mount(member(1), start);
  publish(table, 1, {page(1), page(2)});
  ASSERT_TRUE(table.mount(member(1, 2), start));
  EXPECT_TRUE(holders(table, 1).empty());
  EXPECT_EQ(table.counters().replicas, 0u);
  EXPECT_FALSE(table.expire_replicas(2));
  EXPECT_EQ(table.counters().keys, 0u);
  EXPECT_FALSE(publish(table, 1, {page(3)}, 1)) << "stale";
  EXPECT_FALSE(table.withdraw(1, 1, std::vector{key_of(1)}));
  EXPECT_FALSE(table.heartbeat(1, 1, start + 1s));
  EXPECT_TRUE(holders(table, 3).empty());
  EXPECT_TRUE(publish(table, 1, {page(3)}, 2));
  const auto stale = table.mount(member(1, 1), start);
  ASSERT_FALSE(stale);
  EXPECT_EQ(stale.error().code, ec::invalid_argument);
  EXPECT_EQ(holders(table, 3), (std::vector<uint64_t>{1}));
}

TEST(IndexTableTest, MountingAgainUnderTheSameEpochKeepsThePages) {
  auto table = index_table{};
  const auto handle = table.mount(member(1), start);
  publish(table, 1, {page(1)});
  auto moved = member(1);
  moved.host = "elsewhere";
  EXPECT_EQ(table.mount(moved, start), (mounted_member{handle->handle, false}));
  EXPECT_EQ(table.find(handle->handle)->host, "elsewhere");
  EXPECT_EQ(holders(table, 1), (std::vector<uint64_t>{1}));
}

TEST(IndexTableTest, AMemberThatResumesKeepsItsPages) {
  auto table = index_table{};
  for (uint64_t id : {1, 2})
    table.mount(member(id), start);
  publish(table, 1, {page(1), page(2)});
  publish(table, 2, {page(2)});
  for (uint64_t id : {1, 2})
    table.heartbeat(id, 1, start);
  EXPECT_TRUE(table.suspend(1));
  EXPECT_FALSE(table.suspend(1));
  EXPECT_TRUE(holders(table, 1).empty());
  EXPECT_EQ(holders(table, 2), (std::vector<uint64_t>{2}));
  EXPECT_EQ(table.counters().members, 1u);
  EXPECT_EQ(table.counters().replicas, 1u);
  EXPECT_FALSE(table.member(1));
  EXPECT_EQ(table.members(0, 10).size(), 1u);
  EXPECT_FALSE(table.is_partial());
  EXPECT_FALSE(table.expire_replicas(10));
  EXPECT_TRUE(table.take_lost().empty()) << "it may come back";
  auto again = member(1, 3);
  again.resumes = 1;
  EXPECT_EQ(table.mount(again, start + 1s), (mounted_member{0, true}));
  EXPECT_EQ(holders(table, 1), (std::vector<uint64_t>{1}));
  EXPECT_EQ(table.find(0)->resumes, 0u) << "of no interest to others";
  EXPECT_EQ(table.counters().replicas, 3u);
  EXPECT_TRUE(table.is_partial()) << "until it has told what happened meanwhile";
  EXPECT_FALSE(publish(table, 1, {page(3)}, 1)) << "late";
  table.heartbeat(1, 3, start + 1s);
  EXPECT_FALSE(table.is_partial());
  // The answer to a mount may be lost: the member knows of the first epoch alone.
  again.epoch = 4;
  EXPECT_TRUE(table.mount(again, start + 1s)->is_resumed);
}

TEST(IndexTableTest, AMemberThatResumesWhatTheTableForgotBeginsAnew) {
  auto table = index_table{};
  table.mount(member(1, 5), start);
  publish(table, 1, {page(1)}, 5);
  for (const auto resumes : {uint64_t{4}, uint64_t{8}}) {
    auto again = member(1, 6 + resumes);
    again.resumes = resumes;
    EXPECT_FALSE(table.mount(again, start)->is_resumed) << resumes;
    EXPECT_TRUE(holders(table, 1).empty());
  }
  table.suspend(1);
  EXPECT_EQ(table.silent(start + 11s, 10s), std::vector<uint64_t>{1});
  EXPECT_FALSE(table.drop(1)) << "nothing of it was offered any more";
  auto again = member(1, 20);
  again.resumes = 14;
  EXPECT_FALSE(table.mount(again, start)->is_resumed);
}

TEST(IndexTableTest, CopiesOfASuspendedMemberAreLostWhenItIsDropped) {
  auto table = index_table{};
  for (uint64_t id : {1, 2}) {
    table.mount(member(id), start);
    publish(table, id, {page(1)});
  }
  table.suspend(1);
  table.suspend(2);
  table.drop(1);
  EXPECT_FALSE(table.expire_replicas(10));
  EXPECT_EQ(table.take_lost(), (std::vector{lost_copy{2, key_of(1)}})) << "when it is back";
}

TEST(IndexTableTest, UnknownMembersAreIgnored) {
  auto table = index_table{};
  EXPECT_FALSE(publish(table, 1, {page(1)}));
  EXPECT_FALSE(table.withdraw(1, 1, std::vector{key_of(1)}));
  EXPECT_FALSE(table.heartbeat(1, 1, start));
  EXPECT_FALSE(table.drop(1));
  EXPECT_EQ(table.counters().keys, 0u);
}

TEST(IndexTableTest, DropRemovesTheMemberAndItsReplicas) {
  auto table = index_table{};
  for (uint64_t id : {1, 2})
    table.mount(member(id), start);
  publish(table, 1, {page(1), page(2)});
  publish(table, 2, {page(2, 0, 7)});
  EXPECT_TRUE(table.drop(1));
  EXPECT_TRUE(holders(table, 1).empty());
  EXPECT_EQ(holders(table, 2), (std::vector<uint64_t>{2}));
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.counters().members, 1u);
  EXPECT_EQ(table.counters().bytes, 7u);
  EXPECT_TRUE(table.expire_replicas(1));
  EXPECT_FALSE(table.expire_replicas(1));
  EXPECT_EQ(table.counters().keys, 1u);
  EXPECT_EQ(table.counters().bytes, 7u);
  ASSERT_EQ(table.members(0, 10).size(), 1u);
  EXPECT_EQ(table.members(0, 10)[0].replicas, 1u);
  EXPECT_EQ(table.mount(member(3), start)->handle, 0u) << "handles stay dense";
}

TEST(IndexTableTest, AMemberThatReturnsBeforeItsPastIsReapedOffersOnlyWhatItAnnouncesNow) {
  auto table = index_table{};
  table.mount(member(1), start);
  publish(table, 1, {page(1), page(2), page(3)});
  table.drop(1);
  EXPECT_TRUE(table.expire_replicas(1));
  table.mount(member(1, 2), start);
  publish(table, 1, {page(2, 77)}, 2);
  EXPECT_EQ(holders(table, 2), (std::vector<uint64_t>{1}));
  EXPECT_TRUE(holders(table, 1).empty() && holders(table, 3).empty());
  while (table.expire_replicas(1))
    continue;
  EXPECT_EQ(table.locate(std::vector{key_of(2)}).of(0)[0].offset, 77u);
  EXPECT_EQ(table.counters().keys, 1u);
}

TEST(IndexTableTest, ReplicasOfTheGoneDoNotCountAgainstTheBound) {
  auto table = index_table{};
  for (uint64_t id = 1; id <= limits::replicas_per_key + 1; ++id)
    table.mount(member(id), start);
  for (uint64_t id = 1; id <= limits::replicas_per_key; ++id)
    publish(table, id, {page(1)});
  table.drop(1);
  publish(table, limits::replicas_per_key + 1, {page(1)});
  EXPECT_EQ(holders(table, 1).back(), limits::replicas_per_key + 1);
  EXPECT_EQ(table.counters().refused, 0u);
}

TEST(IndexTableTest, NamesTheSilentOnesOnly) {
  auto table = index_table{};
  for (uint64_t id : {1, 2, 3}) {
    table.mount(member(id), start);
    publish(table, id, {page(1)});
  }
  EXPECT_TRUE(table.heartbeat(2, 1, start + 8s));
  EXPECT_TRUE(table.heartbeat(3, 1, start + 2s));
  EXPECT_TRUE(table.heartbeat(3, 1, start + 1s)) << "a late heartbeat does not turn time back";
  EXPECT_TRUE(table.silent(start + 10s, 10s).empty()) << "exactly the ttl is not yet too long";
  EXPECT_EQ(table.silent(start + 12s, 10s), (std::vector<uint64_t>{1}));
  table.drop(1);
  EXPECT_EQ(table.silent(start + 30s, 10s), (std::vector<uint64_t>{3, 2}));
  for (uint64_t id : {2, 3})
    table.drop(id);
  EXPECT_FALSE(table.expire_replicas(3));
  EXPECT_EQ(table.counters().keys, 0u);
  EXPECT_TRUE(table.mount(member(1), start + 40s));
}

TEST(IndexTableTest, MembersAreBounded) {
  auto table = index_table{};
  for (uint64_t id = 0; id < limits::index_members; ++id)
    ASSERT_TRUE(table.mount(member(id), start));
  const auto refused = table.mount(member(limits::index_members), start);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ec::limit_reached);
  table.drop(5);
  EXPECT_TRUE(table.mount(member(limits::index_members), start));
}

TEST(IndexTableTest, AKeyCostsAtMost96Bytes) {
  auto table = index_table{};
  table.mount(member(1), start);
  for (uint64_t number = 0; number < 300'000; ++number) {
    publish(table, 1, {page(number)});
    if (number >= 100'000 && number % 1000 == 0) {
      ASSERT_LE(table.memory_bytes(), 96 * number) << number;
    }
  }
}

TEST(IndexTableTest, WithdrawnRecordsAreUsedAgain) {
  auto table = index_table{};
  table.mount(member(1), start);
  for (uint64_t number = 0; number < 10'000; ++number)
    publish(table, 1, {page(number)});
  const auto before = table.memory_bytes();
  for (uint64_t number = 0; number < 200'000; ++number) {
    table.withdraw(1, 1, std::vector{key_of(number)});
    publish(table, 1, {page(number + 10'000)});
  }
  EXPECT_LE(table.memory_bytes(), before * 2);
  EXPECT_EQ(table.counters().keys, 10'000u);
}

} // namespace
} // namespace hicache
