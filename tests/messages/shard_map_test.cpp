#include "messages/shard_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace hicache {
namespace {

std::vector<page_key> random_keys(size_t count) {
  auto random = std::mt19937_64{7};
  auto keys = std::vector<page_key>(count);
  for (auto& key : keys)
    std::ranges::generate(key.bytes, [&] { return static_cast<uint8_t>(random()); });
  return keys;
}

/// Shards with these numbers, each in a process of its own.
shard_set apart(const std::vector<uint32_t>& numbers) {
  auto processes = numbers;
  return {numbers, processes};
}

std::vector<uint32_t> numbers_of(const std::vector<page_key>& keys, std::vector<uint32_t> shards) {
  auto numbers = std::vector<uint32_t>{};
  for (const auto& key : keys)
    numbers.push_back(shards[apart(shards).keepers_of(key).first]);
  return numbers;
}

/// The numbers of the shards that keep a key.
std::set<uint32_t> keepers(const shard_set& shards, const page_key& key) {
  const auto found = shards.keepers_of(key);
  auto numbers = std::set<uint32_t>{shards.numbers[found.first]};
  if (found.second != key_keepers::none)
    numbers.insert(shards.numbers[found.second]);
  return numbers;
}

TEST(ShardMapTest, KeysAreSpreadEvenly) {
  const auto numbers = numbers_of(random_keys(80'000), {0, 1, 2, 3, 4, 5, 6, 7});
  for (auto shard = uint32_t{0}; shard < 8; ++shard) {
    // Binomial: mean 10000, standard deviation 94.
    const auto share = std::ranges::count(numbers, shard);
    EXPECT_GT(share, 9500);
    EXPECT_LT(share, 10500);
  }
}

TEST(ShardMapTest, KeysOfOneShardAreSpreadOverTheHashTablesOfIt) {
  auto first_bytes = std::vector<int>(256);
  const auto keys = random_keys(80'000);
  const auto numbers = numbers_of(keys, {0, 1, 2, 3, 4, 5, 6, 7});
  for (auto i = size_t{0}; i < keys.size(); ++i)
    if (numbers[i] == 3)
      ++first_bytes[keys[i].bytes[0]];
  EXPECT_GT(*std::ranges::min_element(first_bytes), 10);
}

TEST(ShardMapTest, AKeyMovesOnlyToTheShardThatComesAndFromTheOneThatGoes) {
  const auto keys = random_keys(20'000);
  const auto before = numbers_of(keys, {0, 1, 2});
  const auto after = numbers_of(keys, {0, 1, 2, 9});
  auto moved = 0;
  for (auto i = size_t{0}; i < keys.size(); ++i)
    if (before[i] != after[i]) {
      EXPECT_EQ(after[i], 9u);
      ++moved;
    }
  EXPECT_GT(moved, 4500);
  EXPECT_LT(moved, 5500);
}

TEST(ShardMapTest, EachKeyHasTwoKeepersInDifferentProcesses) {
  const auto shards = shard_set{{0, 1, 4, 5, 7}, {0, 0, 2, 2, 4}};
  auto count = std::map<std::set<uint32_t>, int>{};
  for (const auto& key : random_keys(20'000)) {
    const auto found = shards.keepers_of(key);
    ASSERT_NE(found.second, key_keepers::none);
    EXPECT_NE(shards.processes[found.first], shards.processes[found.second]);
    ++count[keepers(shards, key)];
  }
  EXPECT_EQ(count.size(), 8u) << "all pairs of shards that are apart";
}

TEST(ShardMapTest, OneProcessKeepsAKeyOnce) {
  for (const auto& key : random_keys(100)) {
    EXPECT_EQ(keepers({{3}, {0}}, key).size(), 1u);
    EXPECT_EQ(keepers({{0, 1, 2}, {0, 0, 0}}, key).size(), 1u);
  }
}

TEST(ShardMapTest, WhenAProcessEndsTheSecondKeeperIsTheFirstOfThoseLeft) {
  const auto all = shard_set{{0, 1, 2, 3}, {0, 0, 2, 2}};
  const auto left = shard_set{{2, 3}, {2, 2}};
  for (const auto& key : random_keys(1000)) {
    const auto before = all.keepers_of(key);
    const auto heir = all.processes[before.first] == 0 ? before.second : before.first;
    EXPECT_EQ(all.numbers[heir], left.numbers[left.keepers_of(key).first]);
  }
}

TEST(ShardMapTest, KeepersChangeOnlyForTheShardThatComes) {
  const auto before = apart({0, 1, 2});
  const auto after = apart({0, 1, 2, 9});
  auto moved = 0;
  for (const auto& key : random_keys(20'000))
    if (const auto now = keepers(after, key); now != keepers(before, key)) {
      EXPECT_TRUE(now.contains(9));
      ++moved;
    }
  EXPECT_NEAR(moved, 10'000, 500);
}

TEST(ShardMapTest, ShardsAtOneAddressAreOneProcess) {
  const auto addresses = std::vector<std::string>{"a:1", "b:1", "a:1", "c:1", "b:1"};
  EXPECT_EQ(process_numbers(addresses), (std::vector<uint32_t>{0, 1, 0, 3, 1}));
}

TEST(ShardMapTest, MapsBecomeEqualInWhateverOrderTheyMeet) {
  const auto a = shard_map{{{0, "a:1", 10}, {2, "a:1", 10}}};
  const auto b = shard_map{{{1, "b:1", 5}, {2, "b:1", 11}}};
  const auto c = shard_map{{{0, "", 12}, {2, "c:1", 11}}};
  auto one = a;
  EXPECT_TRUE(merge(one, b));
  EXPECT_TRUE(merge(one, c));
  EXPECT_FALSE(merge(one, a));
  auto other = c;
  EXPECT_FALSE(merge(other, a));
  EXPECT_TRUE(merge(other, b));
  EXPECT_EQ(one, other);
  EXPECT_EQ(digest_of(one), digest_of(other));
  EXPECT_EQ(one, (shard_map{{{0, "", 12}, {1, "b:1", 5}, {2, "c:1", 11}}}));
}

TEST(ShardMapTest, ADigestDependsOnEverything) {
  const auto map = shard_map{{{0, "a:1", 10}}};
  EXPECT_NE(digest_of(map), digest_of({{{0, "a:1", 11}}}));
  EXPECT_NE(digest_of(map), digest_of({{{0, "a:2", 10}}}));
  EXPECT_NE(digest_of(map), digest_of({{{1, "a:1", 10}}}));
  EXPECT_NE(digest_of(map), digest_of({}));
}

} // namespace
} // namespace hicache
