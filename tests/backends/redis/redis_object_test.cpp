#include "backends/redis/redis_commands.hpp"
#include "backends/redis/redis_object.hpp"
#include "tests/backends/backend_support.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace hicache::test {
namespace {

constexpr auto fingerprint = uint64_t{7};

redis_head head_of(uint64_t length, uint32_t chunk_bytes) {
  return {{.fingerprint = fingerprint, .key = key_of(1), .length = length, .checksum = 3},
          chunk_bytes,
          static_cast<uint32_t>(redis_chunks(length, chunk_bytes))};
}

page_bytes encoded(const redis_head& head) {
  auto bytes = page_bytes(redis_head_bytes);
  encode_redis_head(head, std::span{bytes}.first<redis_head_bytes>());
  return bytes;
}

result<redis_head> decoded(const page_bytes& bytes) {
  return decode_redis_head(bytes, key_of(1), fingerprint);
}

TEST(RedisObject, HeadsComeBack) {
  for (const auto length : {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{10000}})
    EXPECT_EQ(decoded(encoded(head_of(length, 4096))).value(), head_of(length, 4096));
}

TEST(RedisObject, RefusesHeadsThatContradictThemselves) {
  auto chunks = head_of(10000, 4096);
  ++chunks.chunks;
  auto small = head_of(10000, 4095);
  auto none = head_of(10000, 4096);
  none.chunk_bytes = 0;
  auto large = head_of(10000, 4096);
  large.chunk_bytes = static_cast<uint32_t>(redis_chunk_max + 1);
  large.chunks = 1;
  for (const auto& head : {chunks, small, none, large})
    EXPECT_EQ(code_of(decoded(encoded(head))), ec::corrupt_page);
}

TEST(RedisObject, RefusesHeadsOfOthersAndCutOnes) {
  const auto bytes = encoded(head_of(10000, 4096));
  EXPECT_EQ(code_of(decode_redis_head(bytes, key_of(2), fingerprint)), ec::corrupt_page);
  EXPECT_EQ(code_of(decode_redis_head(bytes, key_of(1), fingerprint + 1)), ec::corrupt_page);
  auto cut_one = bytes;
  cut_one.pop_back();
  EXPECT_EQ(code_of(decoded(cut_one)), ec::corrupt_page);
  EXPECT_EQ(code_of(decoded({})), ec::corrupt_page);
}

TEST(RedisObject, TheLastChunkIsShorter) {
  const auto head = head_of(10000, 4096);
  ASSERT_EQ(head.chunks, 3u);
  EXPECT_EQ(redis_chunk_length(head, 0), 4096u);
  EXPECT_EQ(redis_chunk_length(head, 2), 10000u - 2 * 4096u);
  EXPECT_EQ(redis_chunks(8192, 4096), 2u);
  EXPECT_EQ(redis_chunks(0, 4096), 1u);
}

TEST(RedisObject, AllValuesOfAnObjectHaveOneHashTag) {
  const auto tag = to_string(key_of(1));
  EXPECT_EQ(redis_name("p:", key_of(1)), "p:{" + tag + "}");
  EXPECT_EQ(redis_name("p:", key_of(1), 2), "p:{" + tag + "}:2");
}

/// By the specification of Redis Cluster, and by CLUSTER KEYSLOT.
TEST(RedisObject, TheNameOfTheFirstValueIsThatOfTheObject) {
  const auto key = key_of(1);
  EXPECT_EQ(parse_redis_name("kv:", redis_name("kv:", key)), key);
  EXPECT_EQ(parse_redis_name("", redis_name("", key)), key);
  for (const auto& other : {redis_name("kv:", key, 1), redis_name("other:", key), to_string(key),
                            std::string{"kv:{}"}, std::string{"kv:{ab}"}, std::string{"kv:"}})
    EXPECT_FALSE(parse_redis_name("kv:", other)) << other;
}

TEST(RedisObject, SlotsAreThoseOfRedis) {
  EXPECT_EQ(redis_slot("123456789"), 0x31c3);
  EXPECT_EQ(redis_slot("foo"), 12182);
  EXPECT_EQ(redis_slot(""), 0);
}

std::string text_of(const redis_commands& commands) {
  auto pieces = std::vector<iovec>{};
  commands.append_to(pieces);
  auto text = std::string{};
  for (const auto& piece : pieces)
    text.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  return text;
}

TEST(RedisCommands, AreArraysOfStrings) {
  auto commands = redis_commands{};
  commands.add({"GET", "a"});
  commands.add({"PING"});
  EXPECT_EQ(text_of(commands), "*2\r\n$3\r\nGET\r\n$1\r\na\r\n*1\r\n$4\r\nPING\r\n");
  EXPECT_EQ(commands.count(), 2u);
}

TEST(RedisCommands, SetTakesItsPayloadFromManyParts) {
  const auto bytes = std::array{std::byte{'x'}, std::byte{'y'}, std::byte{'z'}};
  const auto whole = std::span{bytes};
  auto commands = redis_commands{};
  commands.add_set("k", whole.first(1),
                   std::vector{whole.subspan(1, 1), whole.first(0), whole.subspan(2)},
                   std::chrono::milliseconds{250});
  commands.add_set("k", {}, {}, std::chrono::milliseconds{0});
  EXPECT_EQ(text_of(commands),
            "*5\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nxyz\r\n$2\r\nPX\r\n$3\r\n250\r\n"
            "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n");
}

} // namespace
} // namespace hicache::test
