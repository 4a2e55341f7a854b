// What a store's process may send: nothing of it reaches further than the link.

#include "backends/external/external_backend.hpp"
#include "backends/external/store_link.hpp"
#include "messages/page_header.hpp"
#include "tests/backends/backend_support.hpp"
#include "tests/backends/external/scripted_store.hpp"

#include <gtest/gtest.h>

#include <chrono>

namespace hicache::test {
namespace {

using namespace std::chrono_literals;

std::vector<std::byte> welcome_of(const std::string& error) {
  auto welcome = store_welcome{};
  welcome.error = error;
  return scripted_store::message(welcome);
}

const auto welcome = welcome_of("");

std::vector<std::byte> answer_of(uint64_t number, std::vector<store_outcome> objects,
                                 const std::string& error = "") {
  return scripted_store::message(
    store_answer{number, error, std::move(objects), false, "", {}, ""});
}

store_outcome done_with(uint64_t bytes) {
  return {store_status::done, bytes, ""};
}

result<std::unique_ptr<store_link>> link_to(const scripted_store& store,
                                            store_link::milliseconds time) {
  return connect_to(*unix_address_of(store.path())).and_then([&](unique_fd socket) {
    return store_link::open(std::move(socket), 1 << 20, "{}", time);
  });
}

/// What a look-up of one object ends with, after a good welcome.
result<store_answer> outcome_of(std::vector<std::byte> answer,
                                store_link::milliseconds time = 30s) {
  const auto store = scripted_store{[&](size_t number) { return number == 0 ? welcome : answer; }};
  auto link = link_to(store, 30s);
  EXPECT_TRUE(link) << to_string(link.error());
  const auto called
    = (*link)->call({.kind = store_request_kind::lookup, .objects = {store_slot{key_of(1)}}}, time);
  const auto is_usable = called || called.error().code == ec::io_failure;
  EXPECT_EQ((*link)->is_broken(), !is_usable);
  return called;
}

TEST(StoreLinkTest, AnAnswerHasAnOutcomeForEachObject) {
  const auto called = outcome_of(answer_of(1, {store_outcome{}}));
  ASSERT_TRUE(called) << to_string(called.error());
  EXPECT_EQ(called->objects, std::vector{store_outcome{}});
  EXPECT_EQ(code_of(outcome_of(answer_of(1, {}))), ec::malformed_message);
  EXPECT_EQ(code_of(outcome_of(answer_of(1, {store_outcome{}, store_outcome{}}))),
            ec::malformed_message);
}

TEST(StoreLinkTest, AnAnswerToAnotherCallEndsTheLink) {
  EXPECT_EQ(code_of(outcome_of(answer_of(2, {store_outcome{}}))), ec::malformed_message);
}

TEST(StoreLinkTest, AWholeCallMayFailWithASentence) {
  const auto called = outcome_of(answer_of(1, {}, "it is broken"));
  EXPECT_EQ(code_of(called), ec::io_failure);
  EXPECT_EQ(called.error().detail, "it is broken");
}

TEST(StoreLinkTest, WhatIsNoMessageEndsTheLink) {
  auto noise = scripted_store::head(64);
  noise.resize(noise.size() + 64, std::byte{0xa5});
  EXPECT_EQ(code_of(outcome_of(noise)), ec::malformed_message);
  EXPECT_EQ(code_of(outcome_of(scripted_store::head(7))), ec::malformed_message);
  EXPECT_EQ(code_of(outcome_of(scripted_store::head(store_message_bytes + 8))),
            ec::malformed_message);
  EXPECT_EQ(code_of(outcome_of(welcome)), ec::malformed_message);
}

TEST(StoreLinkTest, AProcessThatHangsUpOrIsSilentEndsTheLink) {
  EXPECT_EQ(code_of(outcome_of({})), ec::peer_unreachable);
  // It promises more than it sends.
  EXPECT_EQ(code_of(outcome_of(scripted_store::head(800), 50ms)), ec::deadline_exceeded);
}

TEST(StoreLinkTest, AStoreThatRefusesSaysWhy) {
  const auto refusing = scripted_store{[](size_t) { return welcome_of("no such folder"); }};
  const auto refused = link_to(refusing, 30s);
  EXPECT_EQ(code_of(refused), ec::invalid_argument);
  EXPECT_EQ(refused.error().detail, "no such folder");
  const auto silent = scripted_store{[](size_t) { return scripted_store::head(800); }};
  EXPECT_EQ(code_of(link_to(silent, 50ms)), ec::deadline_exceeded);
}

/// A read that tells of more bytes than there is room for, and one whose bytes are not the
/// object's.
TEST(StoreLinkTest, AReadIsBelievedOnlyIfItsBytesVerify) {
  const auto lengths = std::vector<uint64_t>{~uint64_t{0}, 0, 100, 5000};
  for (const auto length : lengths) {
    const auto store = scripted_store{[&](size_t number) {
      return number == 0   ? welcome
             : number == 1 ? answer_of(1, {done_with(length)})
                           : answer_of(2, {store_outcome{}});
    }};
    const auto clock = monotonic_clock{};
    auto backend = make_external_backend({.socket = store.path()}, clock);
    ASSERT_TRUE(backend) << backend.error().detail;
    EXPECT_FALSE(take(**backend, key_of(1), 4096)) << length;
  }
}

/// What a list from "3" ends with, of a store that says it can.
result<object_list> list_of(std::vector<store_listed> listed, const std::string& next,
                            bool lists = true) {
  auto able = store_welcome{};
  able.lists = lists;
  auto answer = store_answer{};
  answer.number = 1;
  answer.listed = std::move(listed);
  answer.next = next;
  const auto store = scripted_store{[&](size_t number) {
    return number == 0 ? scripted_store::message(able) : scripted_store::message(answer);
  }};
  const auto clock = monotonic_clock{};
  auto backend = make_external_backend({.socket = store.path(), .window_bytes = 64 << 10}, clock);
  EXPECT_TRUE(backend) << backend.error().detail;
  return (*backend)->list("3", no_deadline);
}

TEST(StoreLinkTest, AListIsInPartsAndLeavesOutWhatIsNoObject) {
  const auto listed
    = list_of({{key_of(1), page_header_bytes + 5}, {key_of(2), page_header_bytes - 1}}, "4");
  ASSERT_TRUE(listed) << to_string(listed.error());
  EXPECT_EQ(listed->objects, (std::vector<listed_object>{{key_of(1), {}, 5}}));
  EXPECT_EQ(listed->next, "4");
}

TEST(StoreLinkTest, AStoreThatCannotListIsNotAsked) {
  const auto refused = list_of({}, "", false);
  EXPECT_EQ(code_of(refused), ec::unsupported);
  EXPECT_EQ(refused.error().detail, "external cannot list its objects");
}

TEST(StoreLinkTest, AListIsBelievedOnlyWithinItsBounds) {
  EXPECT_EQ(code_of(list_of({{key_of(1), 65 << 10}}, "")), ec::io_failure);
  EXPECT_EQ(code_of(list_of({{key_of(1), ~uint64_t{0}}}, "")), ec::io_failure);
  EXPECT_EQ(code_of(list_of({}, "3")), ec::io_failure);
  EXPECT_EQ(code_of(list_of(std::vector<store_listed>(store_request_objects + 1), "")),
            ec::malformed_message);
}

TEST(StoreLinkTest, ASocketWhereNobodyListensIsNamed) {
  const auto clock = monotonic_clock{};
  const auto folder = temporary_folder{};
  const auto path = folder.path() + "/absent";
  const auto none = make_external_backend({.socket = path}, clock);
  EXPECT_EQ(code_of(none), ec::peer_unreachable);
  EXPECT_EQ(none.error().detail, "external: No such file or directory (socket " + path + ")");
  const auto too_long = make_external_backend({.socket = std::string(200, 'x')}, clock);
  EXPECT_EQ(code_of(too_long), ec::invalid_argument);
  EXPECT_NE(too_long.error().detail.find("too long for a socket"), std::string::npos);
}

TEST(StoreLinkTest, AWindowHasBounds) {
  const auto clock = monotonic_clock{};
  const auto small = make_external_backend({.socket = "x", .window_bytes = 1000}, clock);
  EXPECT_EQ(code_of(small), ec::invalid_argument);
  EXPECT_NE(small.error().detail.find("expected 64.0 KiB to 64.0 GiB"), std::string::npos)
    << small.error().detail;
}

} // namespace
} // namespace hicache::test
