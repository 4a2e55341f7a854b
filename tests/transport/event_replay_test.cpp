// Events that a subscriber asks for, which is ZeroMQ's own.

#include "transport/event_replay.hpp"

#include <gtest/gtest.h>

#include <zmq.hpp>

#include <memory>
#include <string>
#include <vector>

namespace hicache {
namespace {

/// A subscriber that asks for what it missed.
class EventReplayTest : public testing::Test {
protected:
  void SetUp() override {
    auto opened = event_replay::open("tcp://127.0.0.1:*");
    ASSERT_TRUE(opened) << opened.error().detail;
    replay_ = std::move(*opened);
    subscriber_.set(zmq::sockopt::rcvtimeo, 20'000);
    subscriber_.connect(replay_->endpoint());
  }

  void ask(const std::vector<std::string>& frames) {
    for (auto i = size_t{0}; i < frames.size(); ++i)
      subscriber_.send(zmq::buffer(frames[i]),
                       i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }

  /// What is answered, up to the end: numbers, each the message's text too.
  std::vector<size_t> numbers(const std::string& first) {
    ask({"", first});
    auto numbers = std::vector<size_t>{};
    while (true) {
      auto frames = std::vector<std::string>{};
      auto frame = zmq::message_t{};
      do {
        if (!subscriber_.recv(frame)) {
          ADD_FAILURE() << "no answer";
          return numbers;
        }
        frames.push_back(frame.to_string());
      } while (frame.more());
      EXPECT_EQ(frames.size(), 4u);
      EXPECT_EQ(frames[0], "");
      if (frames[2] == std::string(8, '\xff')) {
        EXPECT_EQ(frames[1] + frames[3], "");
        return numbers;
      }
      EXPECT_EQ(frames[1], "kv");
      auto number = size_t{0};
      for (const auto byte : frames[2])
        number = number << 8 | static_cast<unsigned char>(byte);
      EXPECT_TRUE(frames[3].starts_with(std::to_string(number))) << frames[3].substr(0, 20);
      numbers.push_back(number);
    }
  }

  void keep(size_t number, size_t bytes = 0) {
    replay_->keep("kv", number, std::to_string(number) + std::string(bytes, 'x'));
  }

  zmq::context_t context_;
  zmq::socket_t subscriber_{context_, ZMQ_DEALER};
  std::unique_ptr<event_replay> replay_;
};

TEST_F(EventReplayTest, GivesWhatWasPublishedFromANumberOn) {
  for (auto i = size_t{254}; i < 258; ++i)
    keep(i);
  EXPECT_EQ(numbers({"\0\0\0\0\0\0\1\0", 8}), (std::vector<size_t>{256, 257}));
  EXPECT_EQ(numbers(std::string(8, '\0')), (std::vector<size_t>{254, 255, 256, 257}));
  EXPECT_EQ(numbers({"\0\0\0\0\0\0\2\0", 8}), std::vector<size_t>{});
}

TEST_F(EventReplayTest, KeepsTheLastTenThousandMessagesUnlessTheyAreHuge) {
  for (auto i = size_t{0}; i < 10'003; ++i)
    keep(i);
  const auto all = numbers(std::string(8, '\0'));
  EXPECT_EQ(all.size(), 10'000u);
  EXPECT_EQ(all.front(), 3u);
  for (auto i = size_t{20'000}; i < 20'003; ++i)
    keep(i, size_t{30} << 20);
  EXPECT_EQ(numbers(std::string(8, '\0')), (std::vector<size_t>{20'001, 20'002}));
}

TEST_F(EventReplayTest, WhatIsNoRequestIsLeftAlone) {
  keep(7);
  ask({"what?"});
  ask({"", "a", "b"});
  ask({"", std::string(9, '\0')});
  EXPECT_EQ(numbers(std::string(8, '\0')), std::vector<size_t>{7});
}

TEST_F(EventReplayTest, WhatIsNoEndpointIsRefusedWithASentence) {
  for (const auto* endpoint : {"", "5557", "tcp://*"}) {
    const auto refused = event_replay::open(endpoint);
    ASSERT_FALSE(refused) << endpoint;
    EXPECT_EQ(refused.error().code, ec::invalid_argument);
    EXPECT_NE(refused.error().detail.find("expected one such as tcp://"), std::string::npos);
  }
}

} // namespace
} // namespace hicache
