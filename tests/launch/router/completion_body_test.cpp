// What passes through the router.

#include "launch/router/completion_body.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hicache {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

completion_body parse(const std::string& text) {
  auto parsed = completion_body::parse(text);
  EXPECT_TRUE(parsed) << text;
  return parsed.value_or(completion_body{});
}

TEST(CompletionBodyTest, TokensAreAsGivenOrTheBytesOfAText) {
  EXPECT_THAT(parse(R"({"prompt": [3, 70000]})").tokens(), ElementsAre(3, 70000));
  EXPECT_THAT(parse(R"({"prompt": "aé"})").tokens(), ElementsAre(97, 0xc3, 0xa9));
  for (const auto* const other :
       {"{}", R"({"prompt": null})", R"({"prompt": [1, -1]})", R"({"prompt": ["a", "b"]})",
        R"({"prompt": [[1], [2]]})", R"({"prompt": [1.5]})", R"({"prompt": [4294967296]})"})
    EXPECT_THAT(parse(other).tokens(), IsEmpty()) << other;
  for (const auto* const bad : {"", "[]", "7", "{", "{\"prompt\": \"\xff\"}"})
    EXPECT_FALSE(completion_body::parse(bad)) << bad;
  const auto deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  EXPECT_FALSE(completion_body::parse(R"({"prompt": "a", "x": )" + deep + "}"));
}

TEST(CompletionBodyTest, TheSaltIsRead) {
  EXPECT_EQ(parse(R"({"cache_salt": "x"})").salt(), "x");
  EXPECT_EQ(parse(R"({"cache_salt": 2})").salt(), "");
  EXPECT_EQ(parse("{}").salt(), "");
}

TEST(CompletionBodyTest, InstancesGetTheClientsBytes) {
  const auto text = std::string{R"( {"b":1,  "a":[1,2]})"};
  EXPECT_EQ(parse(text).for_instance({}), text);
  EXPECT_EQ(parse(text).for_instance({"h:1", "h:2"}),
            R"({"a":[1,2],"b":1,"prefill":["h:1","h:2"]})");
}

TEST(CompletionBodyTest, ClientsDoNotSayWhomAnInstanceAsks) {
  const auto body = parse(R"({"prefill": ["evil:1"], "prompt": "a"})");
  EXPECT_EQ(body.for_instance({}), R"({"prompt":"a"})");
  EXPECT_EQ(body.for_instance({"h:1"}), R"({"prefill":["h:1"],"prompt":"a"})");
}

TEST(EventGateTest, WholeEventsPass) {
  auto gate = event_gate{};
  EXPECT_EQ(gate.pass("data: 1\n"), "");
  EXPECT_EQ(gate.pass("\ndata: 2\n\ndata: 3"), "data: 1\n\ndata: 2\n\n");
  EXPECT_EQ(gate.rest(), "data: 3");
  EXPECT_EQ(gate.pass("\r\n\r\nda"), "data: 3\r\n\r\n");
  EXPECT_EQ(gate.rest(), "da");
  EXPECT_FALSE(gate.is_overfull());
  gate.pass(std::string(size_t{17} << 20, 'x'));
  EXPECT_TRUE(gate.is_overfull());
}

} // namespace
} // namespace hicache
