#include "messages/placement.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

namespace hicache {
namespace {

page_key key_of(uint64_t number) {
  auto key = page_key{};
  const auto word = number * 0x9e37'79b9'7f4a'7c15ULL + 1;
  std::memcpy(key.bytes.data(), &word, sizeof(word));
  return key;
}

/// Members 1 to `count`, two on each host.
std::vector<member_info> members(uint64_t count) {
  auto list = std::vector<member_info>(count);
  for (auto i = uint64_t{0}; i < count; ++i) {
    list[i].member = i + 1;
    list[i].host = "host" + std::to_string(i / 2);
  }
  return list;
}

std::string host_of(uint64_t member) {
  return "host" + std::to_string((member - 1) / 2);
}

TEST(PlacementTest, CopiesGoToDifferentHostsAndNotToTheOwn) {
  const auto all = members(12);
  for (auto number = uint64_t{0}; number < 200; ++number) {
    const auto places = place_replicas(key_of(number), all, "host2", 3);
    ASSERT_EQ(places.size(), 3u);
    auto hosts = std::set<std::string>{"host2"};
    for (const auto member : places)
      EXPECT_TRUE(hosts.insert(host_of(member)).second) << "page " << number;
  }
}

TEST(PlacementTest, ThereAreNoMoreCopiesThanHosts) {
  EXPECT_EQ(place_replicas(key_of(1), members(4), "host0", 5).size(), 1u);
  EXPECT_TRUE(place_replicas(key_of(1), members(2), "host0", 5).empty());
  EXPECT_TRUE(place_replicas(key_of(1), {}, "host0", 5).empty());
}

TEST(PlacementTest, MembersWithoutASegmentGetNoCopies) {
  auto all = members(4);
  all[2].exported = {0, 4096, 4096, 8};
  EXPECT_EQ(place_replicas(key_of(1), all, "host0", 5), std::vector<uint64_t>{4});
  all[2].exported = {64, 4096, 4096, 8};
  all[3].exported = {0, 4096, 4096, 8};
  EXPECT_EQ(place_replicas(key_of(1), all, "host0", 5), std::vector<uint64_t>{3});
}

TEST(PlacementTest, MembersThatAreDrainedGetNoCopies) {
  auto all = members(6);
  all[3].is_closed = true;
  all[4].is_closed = true;
  EXPECT_EQ(place_replicas(key_of(1), all, "host0", 5).size(), 2u);
  for (auto number = uint64_t{0}; number < 200; ++number)
    for (const auto place : place_replicas(key_of(number), all, "host0", 5))
      EXPECT_TRUE(place == 3 || place == 6) << place;
}

TEST(PlacementTest, EveryMemberGetsItsShare) {
  const auto all = members(10);
  auto counts = std::map<uint64_t, int>{};
  for (auto number = uint64_t{0}; number < 4000; ++number)
    ++counts[place_replicas(key_of(number), all, "elsewhere", 1).front()];
  EXPECT_EQ(counts.size(), 10u);
  for (const auto& [member, count] : counts)
    EXPECT_NEAR(count, 400, 100) << "member " << member;
}

TEST(PlacementTest, AMemberThatLeavesMovesItsOwnPagesOnly) {
  const auto all = members(10);
  auto fewer = all;
  fewer.erase(fewer.begin() + 3);
  auto moved = 0;
  for (auto number = uint64_t{0}; number < 1000; ++number) {
    const auto before = place_replicas(key_of(number), all, "elsewhere", 1).front();
    const auto after = place_replicas(key_of(number), fewer, "elsewhere", 1).front();
    EXPECT_TRUE(before == after || before == all[3].member);
    moved += before != after ? 1 : 0;
  }
  EXPECT_GT(moved, 0);
}

} // namespace
} // namespace hicache
