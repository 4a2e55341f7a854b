#include "messages/shard_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
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

std::vector<uint32_t> numbers_of(const std::vector<page_key>& keys, std::vector<uint32_t> shards) {
  auto numbers = std::vector<uint32_t>{};
  for (const auto& key : keys)
    numbers.push_back(shards[shard_of(key, shards)]);
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
  EXPECT_EQ(shard_numbers(one), (std::vector<uint32_t>{1, 2}));
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
