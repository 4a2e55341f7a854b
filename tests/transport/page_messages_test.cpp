#include "transport/page_messages.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <initializer_list>
#include <span>
#include <vector>

namespace hicache {
namespace {

/// A request in bytes that are not aligned.
class raw_request {
public:
  page_request_head head;
  std::vector<page_span> spans;

  result<page_question> decode(size_t header_bytes = sizeof(page_request_head)) const {
    auto bytes = std::vector<std::byte>(1 + sizeof(head) + spans.size() * sizeof(page_span));
    std::memcpy(bytes.data() + 1, &head, sizeof(head));
    if (!spans.empty())
      std::memcpy(bytes.data() + 1 + sizeof(head), spans.data(), spans.size() * sizeof(page_span));
    const auto all = std::span<const std::byte>{bytes}.subspan(1);
    return decode_page_request(all.first(header_bytes), all.subspan(sizeof(head)));
  }
};

raw_request request_of(std::vector<page_span> spans) {
  auto made = raw_request{};
  made.head.id = 77;
  made.head.secret = 99;
  made.head.count = static_cast<uint32_t>(spans.size());
  made.spans = std::move(spans);
  return made;
}

result<page_answer> decode(const page_reply_head& head) {
  return decode_page_reply(std::as_bytes(std::span{&head, 1}));
}

result<page_greeting> decode_greeting(const page_greeting& greeting,
                                      size_t bytes = sizeof(page_greeting)) {
  return decode_page_greeting(std::as_bytes(std::span{&greeting, 1}).first(bytes));
}

TEST(PageGreetingTest, IsOfThisVersion) {
  const auto greeting = decode_greeting({page_protocol, 0, 99});
  ASSERT_TRUE(greeting);
  EXPECT_EQ(greeting->secret, 99u);
  EXPECT_EQ(decode_greeting({page_protocol + 1, 0, 99}).error().detail,
            "it speaks another version");
  EXPECT_EQ(decode_greeting({}, sizeof(page_greeting) - 1).error().detail,
            "its greeting has another length");
}

TEST(PageRequestTest, IsUnderstood) {
  const auto spans
    = std::vector<page_span>{{64, 4096, 10, page_span::exports}, {0, 0, 0}, {8, ~uint64_t{0}, 5}};
  const auto question = request_of(spans).decode();
  ASSERT_TRUE(question);
  EXPECT_EQ(question->id, 77u);
  EXPECT_EQ(question->secret, 99u);
  EXPECT_EQ(question->spans, spans);
}

TEST(PageRequestTest, HasAHeaderOfFixedLength) {
  const auto request = request_of({{0, 0, 1}});
  for (const auto bytes : {size_t{0}, size_t{15}})
    EXPECT_EQ(request.decode(bytes).error().detail, "its header has another length");
}

TEST(PageRequestTest, OfAnotherVersionIsRefused) {
  auto request = request_of({{0, 0, 1}});
  ++request.head.protocol;
  const auto question = request.decode();
  ASSERT_FALSE(question);
  EXPECT_EQ(question.error().code, ec::malformed_message);
  EXPECT_EQ(question.error().detail, "it speaks another version");
}

TEST(PageRequestTest, HasAsManySpansAsItSays) {
  const auto detail = "its request has another length than it says";
  for (const auto count : {0U, 1U, 3U, ~0U}) {
    auto request = request_of({{0, 0, 1}, {0, 8, 1}});
    request.head.count = count;
    ASSERT_FALSE(request.decode()) << count;
    EXPECT_EQ(request.decode().error().detail, detail);
  }
  ASSERT_FALSE(request_of({}).decode());
}

TEST(PageRequestTest, HasNoMoreSpansThanAServerTakes) {
  EXPECT_TRUE(request_of(std::vector<page_span>(limits::transfer_ranges)).decode());
  EXPECT_FALSE(request_of(std::vector<page_span>(limits::transfer_ranges + 1)).decode());
}

TEST(PageRequestTest, AsksForNoMoreThanAReplyHolds) {
  constexpr auto most = uint32_t{limits::transfer_bytes};
  EXPECT_TRUE(request_of({{0, 0, most - 1}, {0, 0, 1}}).decode());
  for (const auto& spans :
       {std::vector<page_span>{{0, 0, most}, {0, 0, 1}}, {{0, 0, 8}, {0, 0, ~uint32_t{0}}}})
    EXPECT_EQ(request_of(spans).decode().error().detail,
              "it asks for more bytes than a reply holds");
}

TEST(PageReplyTest, SaysThatBytesFollow) {
  const auto answer = decode({page_protocol, 0, 5});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->id, 5u);
  EXPECT_EQ(answer->refusal, error{});
}

/// Answers to spans, and so many bytes behind them.
std::vector<std::byte> answers_and_bytes(std::initializer_list<int> states, size_t bytes) {
  auto data = std::vector<std::byte>{};
  for (const auto state : states) {
    auto answer = span_answer{static_cast<span_state>(state), 0, {}};
    answer.head.fill(static_cast<std::byte>(0x10 + state));
    const auto raw = std::as_bytes(std::span{&answer, 1});
    data.insert(data.end(), raw.begin(), raw.end());
  }
  data.resize(data.size() + bytes, std::byte{0x77});
  return data;
}

result<span_answers> decode(const std::vector<page_span>& spans,
                            const std::vector<std::byte>& behind_head,
                            const std::vector<std::byte>& data) {
  auto header = std::vector<std::byte>(sizeof(page_reply_head));
  header.insert(header.end(), behind_head.begin(), behind_head.end());
  return decode_span_answers(spans, header, data);
}

TEST(PageReplyTest, SaysOfEachSpanWhetherItIsSent) {
  const auto spans = std::vector<page_span>{{0, 0, 10}, {0, 50, 20}, {0, 90, 30}, {0, 120, 7}};
  const auto data = answers_and_bytes({0, 2, 1, 3}, 40);
  const auto answers = decode(spans, {}, data);
  ASSERT_TRUE(answers);
  const auto states
    = std::array{span_state::sent, span_state::refused, span_state::in_demand, span_state::gone};
  ASSERT_EQ(answers->list.size(), states.size());
  for (auto i = size_t{0}; i < states.size(); ++i) {
    EXPECT_EQ(answers->list[i].state, states[i]);
    EXPECT_EQ(answers->list[i].head.back(),
              static_cast<std::byte>(0x10 + static_cast<int>(states[i])));
  }
  EXPECT_EQ(answers->bytes.size(), 40u);
  EXPECT_EQ(answers->bytes.data() + 40, data.data() + data.size());
}

TEST(PageReplyTest, AboutOneSpanSaysItInItsHeader) {
  const auto one = std::vector<page_span>{{0, 0, 10}};
  const auto bytes = std::vector<std::byte>(10);
  const auto answers = decode(one, answers_and_bytes({1}, 0), bytes);
  ASSERT_TRUE(answers);
  EXPECT_EQ(answers->list.at(0).state, span_state::in_demand);
  EXPECT_EQ(answers->bytes.data(), bytes.data());
  EXPECT_TRUE(decode(one, answers_and_bytes({2}, 0), {}));
  EXPECT_FALSE(decode(one, answers_and_bytes({2}, 0), bytes));
  EXPECT_FALSE(decode(one, answers_and_bytes({0}, 0), {}));
  EXPECT_FALSE(decode(one, {}, answers_and_bytes({0}, 10)));
}

TEST(PageReplyTest, MustFitTheRequest) {
  const auto spans = std::vector<page_span>{{0, 0, 10}, {0, 50, 20}};
  EXPECT_TRUE(decode(spans, {}, answers_and_bytes({0, 0}, 30)));
  for (const auto& data :
       {answers_and_bytes({0, 0}, 29), answers_and_bytes({0, 0}, 31), answers_and_bytes({0, 3}, 30),
        answers_and_bytes({0, 2}, 30), answers_and_bytes({0}, 0), answers_and_bytes({}, 0)})
    EXPECT_EQ(decode(spans, {}, data).error().code, ec::malformed_message);
}

TEST(PageReplyTest, CarriesTheServersRefusal) {
  const auto answer = decode({page_protocol, static_cast<uint32_t>(ec::invalid_argument), 5});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->refusal.code, ec::invalid_argument);
}

TEST(PageReplyTest, OfAnotherVersionIsARefusal) {
  for (const auto& head :
       {page_reply_head{page_protocol + 1, 0, 5}, {page_protocol, ec_count, 5}}) {
    const auto answer = decode(head);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->id, 5u);
    EXPECT_EQ(answer->refusal.code, ec::malformed_message);
  }
}

TEST(PageReplyTest, HasOneOfTwoLengths) {
  const auto bytes = std::vector<std::byte>(reply_header_bytes + 1);
  const auto all = std::span{bytes};
  for (const auto right : {sizeof(page_reply_head), reply_header_bytes})
    EXPECT_TRUE(decode_page_reply(all.first(right)));
  for (const auto wrong : {size_t{0}, sizeof(page_reply_head) - 1, sizeof(page_reply_head) + 1,
                           reply_header_bytes - 1, reply_header_bytes + 1})
    EXPECT_EQ(decode_page_reply(all.first(wrong)).error().code, ec::malformed_message);
}

} // namespace
} // namespace hicache
