#include "base/limits.hpp"
#include "cache/index_table.hpp"
#include "tests/cache_store/test_keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using test::key_of;

constexpr auto start = time_point{};

member_info member(uint64_t id, uint64_t epoch = 1) {
  return {id,
          epoch,
          index_protocol_version,
          "host-" + std::to_string(id),
          "memory",
          "10.0.0.1:7",
          "10.0.0.1:8",
          1 << 20,
          1 << 10,
          {}};
}

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
  EXPECT_EQ(located.of(0)[0], (page_replica{*handle, 2000, 1, 20}));
  EXPECT_TRUE(located.of(1).empty());
  EXPECT_EQ(located.of(2)[0].offset, 1000u);
  EXPECT_EQ(*table.find(*handle), member(1));
  EXPECT_EQ(table.find(99), nullptr);
}

TEST(IndexTableTest, ReplicasComeInOrderOfAnnouncementAndAreBounded) {
  auto table = index_table{};
  const auto count = limits::replicas_per_key + 1;
  auto expected = std::vector<uint64_t>{};
  for (uint64_t id = 1; id <= count; ++id) {
    table.mount(member(id), start);
    publish(table, id, {page(1)});
    if (id <= limits::replicas_per_key)
      expected.push_back(id);
  }
  EXPECT_EQ(holders(table, 1), expected);
  EXPECT_EQ(table.counters().refused, 1u);
  EXPECT_EQ(table.counters().keys, 1u);
  EXPECT_EQ(table.counters().replicas, limits::replicas_per_key);
}

TEST(IndexTableTest, SaysWhichPagesItRefuses) {
  auto table = index_table{};
  for (uint64_t id = 1; id <= limits::replicas_per_key; ++id) {
    table.mount(member(id), start);
    EXPECT_TRUE(table.publish(id, 1, std::vector{page(1)})->empty());
  }
  table.mount(member(99), start);
  EXPECT_EQ(table.publish(99, 1, std::vector{page(1), page(2)}), std::vector{key_of(1)});
  EXPECT_TRUE(table.publish(1, 1, std::vector{page(1)})->empty()) << "it has been there before";
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
  while (table.reap(1))
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
  EXPECT_FALSE(other.reap(10));
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
  EXPECT_FALSE(table.reap(10));
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
  table.reap(10);
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
  EXPECT_FALSE(table.reap(2));
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
  EXPECT_EQ(table.mount(moved, start), handle);
  EXPECT_EQ(table.find(*handle)->host, "elsewhere");
  EXPECT_EQ(holders(table, 1), (std::vector<uint64_t>{1}));
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
  EXPECT_TRUE(table.reap(1));
  EXPECT_FALSE(table.reap(1));
  EXPECT_EQ(table.counters().keys, 1u);
  EXPECT_EQ(table.counters().bytes, 7u);
  ASSERT_EQ(table.members(0, 10).size(), 1u);
  EXPECT_EQ(table.members(0, 10)[0].replicas, 1u);
  EXPECT_EQ(table.mount(member(3), start), 0u) << "handles stay dense";
}

TEST(IndexTableTest, AMemberThatReturnsBeforeItsPastIsReapedOffersOnlyWhatItAnnouncesNow) {
  auto table = index_table{};
  table.mount(member(1), start);
  publish(table, 1, {page(1), page(2), page(3)});
  table.drop(1);
  EXPECT_TRUE(table.reap(1));
  table.mount(member(1, 2), start);
  publish(table, 1, {page(2, 77)}, 2);
  EXPECT_EQ(holders(table, 2), (std::vector<uint64_t>{1}));
  EXPECT_TRUE(holders(table, 1).empty() && holders(table, 3).empty());
  while (table.reap(1))
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

TEST(IndexTableTest, ExpiresTheSilentOnesOnly) {
  auto table = index_table{};
  for (uint64_t id : {1, 2, 3}) {
    table.mount(member(id), start);
    publish(table, id, {page(1)});
  }
  EXPECT_TRUE(table.heartbeat(2, 1, start + 8s));
  EXPECT_TRUE(table.heartbeat(3, 1, start + 2s));
  EXPECT_TRUE(table.heartbeat(3, 1, start + 1s)) << "a late heartbeat does not turn time back";
  EXPECT_TRUE(table.expire(start + 10s, 10s).empty()) << "exactly the ttl is not yet too long";
  EXPECT_EQ(table.expire(start + 12s, 10s), (std::vector<uint64_t>{1}));
  EXPECT_EQ(table.expire(start + 30s, 10s), (std::vector<uint64_t>{3, 2}));
  EXPECT_FALSE(table.reap(3));
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

// -- against a naive model ----------------------------------------------------

struct model_member {
  uint64_t epoch = 0;
  time_point heard;
};

struct model_replica {
  uint64_t member = 0;
  announced_page page;
};

class IndexTableModelTest : public testing::TestWithParam<uint64_t> {
protected:
  static constexpr auto ids = uint64_t{12};
  static constexpr auto numbers = uint64_t{30};

  void forget(uint64_t id) {
    for (auto& [number, list] : replicas)
      std::erase_if(list, [&](const auto& x) { return x.member == id; });
  }

  void mount() {
    const auto id = random() % ids;
    const auto epoch = random() % 4;
    const auto done = table.mount(member(id, epoch), now);
    const auto at = members.find(id);
    if (at != members.end() && epoch < at->second.epoch) {
      ASSERT_FALSE(done);
      return;
    }
    ASSERT_TRUE(done);
    if (at != members.end() && epoch > at->second.epoch)
      forget(id);
    members[id] = {epoch, now};
  }

  bool is_current(uint64_t id, uint64_t epoch) const {
    const auto at = members.find(id);
    return at != members.end() && at->second.epoch == epoch;
  }

  void publish() {
    const auto id = random() % ids;
    const auto epoch = some_epoch(id);
    auto pages = std::vector<announced_page>{};
    auto taken = std::vector<uint64_t>{};
    for (auto i = random() % 6; i > 0; --i) {
      taken.push_back(random() % numbers);
      pages.push_back({key_of(taken.back()), random() % 1000, static_cast<uint32_t>(random() % 9),
                       static_cast<uint32_t>(random() % 5000)});
    }
    ASSERT_EQ(table.publish(id, epoch, pages).has_value(), is_current(id, epoch));
    if (!is_current(id, epoch))
      return;
    for (size_t i = 0; i < pages.size(); ++i) {
      auto& list = replicas[taken[i]];
      const auto old
        = std::find_if(list.begin(), list.end(), [&](const auto& x) { return x.member == id; });
      if (old != list.end())
        old->page = pages[i];
      else if (list.size() < limits::replicas_per_key)
        list.push_back({id, pages[i]});
    }
  }

  void withdraw() {
    const auto id = random() % ids;
    const auto epoch = some_epoch(id);
    const auto number = random() % numbers;
    ASSERT_EQ(table.withdraw(id, epoch, std::vector{key_of(number)}), is_current(id, epoch));
    if (is_current(id, epoch))
      std::erase_if(replicas[number], [&](const auto& x) { return x.member == id; });
  }

  void drop_or_expire() {
    if (random() % 2 == 0) {
      const auto id = random() % ids;
      ASSERT_EQ(table.drop(id), members.erase(id) > 0);
      forget(id);
      return;
    }
    auto gone = table.expire(now, 300ms);
    auto expected = std::vector<uint64_t>{};
    for (const auto& [id, x] : members)
      if (now - x.heard > 300ms)
        expected.push_back(id);
    std::sort(gone.begin(), gone.end());
    ASSERT_EQ(gone, expected);
    for (auto id : expected) {
      members.erase(id);
      forget(id);
    }
  }

  void heartbeat() {
    const auto id = random() % ids;
    const auto epoch = some_epoch(id);
    ASSERT_EQ(table.heartbeat(id, epoch, now), is_current(id, epoch));
    if (is_current(id, epoch))
      members[id].heard = now;
  }

  void compare() {
    auto counters = index_counters{members.size(), 0, 0, 0, table.counters().refused};
    for (uint64_t number = 0; number < numbers; ++number) {
      const auto located = table.locate(std::vector{key_of(number)});
      const auto& list = replicas[number];
      ASSERT_EQ(located.of(0).size(), list.size());
      counters.keys += list.empty() ? 0 : 1;
      counters.replicas += list.size();
      for (size_t i = 0; i < list.size(); ++i) {
        const auto& got = located.of(0)[i];
        ASSERT_EQ(table.find(got.member)->member, list[i].member);
        ASSERT_EQ(got.offset, list[i].page.offset);
        ASSERT_EQ(got.generation, list[i].page.generation);
        ASSERT_EQ(got.length, list[i].page.length);
        counters.bytes += got.length;
      }
    }
    ASSERT_EQ(table.counters().members, counters.members);
    if (table.reap(random() % 4))
      ASSERT_GE(table.counters().keys, counters.keys);
    else
      ASSERT_EQ(table.counters().keys, counters.keys);
    ASSERT_EQ(table.counters().replicas, counters.replicas);
    ASSERT_EQ(table.counters().bytes, counters.bytes);
    auto of_members = uint64_t{0};
    for (const auto& x : table.members(0, 1000))
      of_members += x.bytes;
    ASSERT_EQ(of_members, counters.bytes);
  }

  /// Mostly the epoch of the member, sometimes another.
  uint64_t some_epoch(uint64_t id) {
    const auto at = members.find(id);
    return at == members.end() || random() % 8 == 0 ? random() % 4 : at->second.epoch;
  }

  std::mt19937_64 random{GetParam()};
  index_table table;
  std::map<uint64_t, model_member> members;
  std::map<uint64_t, std::vector<model_replica>> replicas;
  time_point now = start;
};

TEST_P(IndexTableModelTest, BehavesLikeTheModel) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  for (auto step = 0; step < 3000; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    now += std::chrono::milliseconds{random() % 10};
    const auto dice = random() % 20;
    if (dice < 3)
      mount();
    else if (dice < 11)
      publish();
    else if (dice < 15)
      withdraw();
    else if (dice < 19)
      heartbeat();
    else
      drop_or_expire();
    compare();
    if (HasFatalFailure())
      return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, IndexTableModelTest, testing::Range(uint64_t{1}, uint64_t{9}));

} // namespace
} // namespace hicache
