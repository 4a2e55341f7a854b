// Events on their way to a subscriber, which is ZeroMQ's own.

#include "transport/event_socket.hpp"

#include <gtest/gtest.h>

#include <zmq.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace hicache {
namespace {

using namespace std::chrono_literals;

class EventSocketTest : public testing::Test {
protected:
  EventSocketTest() {
    subscriber_.set(zmq::sockopt::subscribe, "kv");
    subscriber_.set(zmq::sockopt::rcvtimeo, 100);
  }

  /// The frames of the next message, if one comes.
  std::vector<std::string> receive() {
    auto frames = std::vector<std::string>{};
    auto frame = zmq::message_t{};
    do {
      if (!subscriber_.recv(frame))
        break;
      frames.push_back(frame.to_string());
    } while (frame.more());
    return frames;
  }

  /// Publishes until a message arrives: what is sent before a subscription is known goes nowhere.
  std::vector<std::string> publish_until_heard(event_socket& events, uint64_t number) {
    const auto give_up = std::chrono::steady_clock::now() + 20s;
    auto heard = std::vector<std::string>{};
    while (heard.empty() && std::chrono::steady_clock::now() < give_up) {
      EXPECT_TRUE(events.publish("other", number, "not subscribed to"));
      EXPECT_TRUE(events.publish("kv", number, "message"));
      heard = receive();
    }
    return heard;
  }

  zmq::context_t context_;
  zmq::socket_t subscriber_{context_, ZMQ_SUB};
};

const auto frames = std::vector<std::string>{"kv", std::string{"\0\0\0\0\0\0\1\2", 8}, "message"};

TEST_F(EventSocketTest, WhoConnectsReadsTopicNumberAndMessage) {
  auto events = event_socket::open("tcp://127.0.0.1:*");
  ASSERT_TRUE(events) << events.error().detail;
  EXPECT_TRUE((*events)->endpoint().starts_with("tcp://127.0.0.1:"));
  EXPECT_EQ((*events)->endpoint().find('*'), std::string::npos);
  subscriber_.connect((*events)->endpoint());
  EXPECT_EQ(publish_until_heard(**events, 0x0102), frames);
}

TEST_F(EventSocketTest, ConnectsToASubscriberThatIsBound) {
  subscriber_.bind("tcp://127.0.0.1:*");
  auto events = event_socket::open(subscriber_.get(zmq::sockopt::last_endpoint));
  ASSERT_TRUE(events) << events.error().detail;
  EXPECT_EQ(publish_until_heard(**events, 0x0102), frames);
}

TEST_F(EventSocketTest, WhatIsNoEndpointIsRefusedWithASentence) {
  const auto first = event_socket::open("tcp://127.0.0.1:*");
  ASSERT_TRUE(first);
  for (const auto& endpoint :
       {std::string{}, std::string{"5557"}, std::string{"tcp://*"}, std::string{"smoke://*:1"}}) {
    const auto refused = event_socket::open(endpoint);
    ASSERT_FALSE(refused) << endpoint;
    EXPECT_EQ(refused.error().code, ec::invalid_argument);
    EXPECT_NE(refused.error().detail.find("expected one such as tcp://"), std::string::npos);
  }
}

} // namespace
} // namespace hicache
