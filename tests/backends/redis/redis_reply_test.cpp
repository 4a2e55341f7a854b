#include "backends/redis/redis_reply.hpp"
#include "tests/backends/backend_support.hpp"

#include <gtest/gtest.h>

namespace hicache::test {
namespace {

using kind = redis_reply::kind;

const auto asked = rpc::endpoint{"10.0.0.1", 6379};

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span{text});
}

/// All replies in a text, which comes in pieces of `step` bytes.
std::vector<redis_reply> replies_in(std::string_view text, size_t step,
                                    const redis_reply_reader::string_sink& sink = {}) {
  auto replies = std::vector<redis_reply>{};
  auto reader = redis_reply_reader{};
  for (auto at = size_t{0}; at < text.size(); at += step) {
    EXPECT_TRUE(reader.feed(bytes(text.substr(at, step))));
    while (true) {
      auto reply = reader.next(sink);
      if (!reply || !*reply)
        break;
      replies.push_back(std::move(**reply));
    }
  }
  return replies;
}

redis_reply reply_of(std::string_view text) {
  return replies_in(text, text.size()).at(0);
}

TEST(RedisReply, EveryKindComesInPiecesOfAnySize) {
  constexpr auto text
    = "+OK\r\n:42\r\n$3\r\nabc\r\n$-1\r\n-ERR no\r\n*2\r\n:1\r\n*1\r\n$1\r\nx\r\n";
  for (const auto step : {1u, 2u, 7u, 100u}) {
    const auto replies = replies_in(text, step);
    ASSERT_EQ(replies.size(), 6u) << step;
    EXPECT_EQ(replies[0].type, kind::status);
    EXPECT_EQ(replies[0].text, "OK");
    EXPECT_TRUE(replies[1].is_integer(42));
    EXPECT_EQ(replies[2].text, "abc");
    EXPECT_EQ(replies[3].type, kind::nil);
    EXPECT_TRUE(replies[4].is_error());
    EXPECT_EQ(replies[5].elements.at(1).elements.at(0).text, "x");
  }
}

TEST(RedisReply, ASinkTakesStringsButNoOthers) {
  auto taken = std::vector<std::string>{};
  const auto replies = replies_in("$3\r\nabc\r\n-ERR no\r\n*1\r\n$1\r\nx\r\n", 4, [&](auto value) {
    taken.emplace_back(reinterpret_cast<const char*>(value.data()), value.size());
  });
  EXPECT_EQ(taken, std::vector<std::string>{"abc"});
  EXPECT_EQ(replies.at(0).text, "");
  EXPECT_EQ(replies.at(1).text, "ERR no");
  EXPECT_EQ(replies.at(2).elements.at(0).text, "x");
}

TEST(RedisReply, WhatIsNoReplyIsRefused) {
  for (const auto* text : {"?\r\n", "HTTP/1.1 400 Bad Request\r\n", ":abc\r\n", "*300000\r\n",
                           "*1\r\n*300000\r\n", "*2147483647\r\n", "$-2\r\n"}) {
    auto reader = redis_reply_reader{};
    ASSERT_TRUE(reader.feed(bytes(text)));
    EXPECT_EQ(code_of(reader.next({})), ec::malformed_message) << text;
  }
}

TEST(RedisReply, Redirections) {
  const auto moved = parse_redirect("MOVED 3999 10.0.0.2:6381", asked);
  ASSERT_TRUE(moved);
  EXPECT_FALSE(moved->is_ask);
  EXPECT_EQ(moved->slot, 3999);
  EXPECT_EQ(to_string(moved->where), "10.0.0.2:6381");
  const auto ask = parse_redirect("ASK 16383 :7000", asked);
  ASSERT_TRUE(ask);
  EXPECT_TRUE(ask->is_ask);
  EXPECT_EQ(to_string(ask->where), "10.0.0.1:7000") << "the host of the one that was asked";
  for (const auto* text :
       {"", "MOVED", "MOVED 1", "MOVED 16384 a:1", "MOVED 1 a", "MOVED 1 a:0", "MOVED 1 a:65536",
        "MOVED 1 ?:1", "MOVED -1 a:1", "MOVED x a:1", "ERR MOVED 1 a:1"})
    EXPECT_FALSE(parse_redirect(text, asked)) << text;
}

TEST(RedisReply, SlotsOfACluster) {
  const auto ranges
    = parse_slots(reply_of("*3\r\n*3\r\n:0\r\n:5460\r\n*3\r\n$8\r\n10.0.0.2\r\n:6379\r\n$1\r\ni\r\n"
                           "*3\r\n:5461\r\n:5461\r\n*2\r\n$-1\r\n:6380\r\n"
                           "*3\r\n:5462\r\n:5463\r\n*2\r\n$1\r\n?\r\n:6380\r\n"),
                  asked);
  ASSERT_TRUE(ranges);
  ASSERT_EQ(ranges->size(), 2u) << "the node with an unknown address is left out";
  EXPECT_EQ(ranges->at(0).last, 5460);
  EXPECT_EQ(to_string(ranges->at(0).master), "10.0.0.2:6379");
  EXPECT_EQ(ranges->at(1).first, 5461);
  EXPECT_EQ(to_string(ranges->at(1).master), "10.0.0.1:6380");
  for (const auto* text :
       {":1\r\n", "*1\r\n:1\r\n", "*1\r\n*3\r\n:5\r\n:4\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:65536\r\n", "*1\r\n*2\r\n:0\r\n:1\r\n"})
    EXPECT_FALSE(parse_slots(reply_of(text), asked)) << text;
}

TEST(RedisReply, ErrorsSayWhatTheyMeanForTheObject) {
  const auto code = [](const char* text) {
    return error_of(reply_of(std::string{"-"} + text + "\r\n"), "a:1").code;
  };
  EXPECT_EQ(code("OOM command not allowed when used memory > 'maxmemory'."), ec::store_full);
  EXPECT_EQ(code("LOADING Redis is loading the dataset in memory"), ec::peer_unreachable);
  EXPECT_EQ(code("CLUSTERDOWN The cluster is down"), ec::peer_unreachable);
  EXPECT_EQ(code("WRONGTYPE Operation against a key"), ec::io_failure);
  EXPECT_TRUE(is_passing(reply_of("-TRYAGAIN Multiple keys\r\n")));
  EXPECT_FALSE(is_passing(reply_of("+TRYAGAIN Multiple keys\r\n")));
}

} // namespace
} // namespace hicache::test
