// Events of a real publisher, on their way to the router.

#include "launch/router/event_order.hpp"
#include "launch/router/event_subscription.hpp"
#include "transport/event_replay.hpp"
#include "transport/event_socket.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

namespace hicache {
namespace {

using namespace std::chrono_literals;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(EventOrderTest, NumbersAreJudged) {
  auto order = event_order{};
  const auto take = [&](uint64_t number) {
    const auto verdict = order.judge(number);
    if (verdict == event_verdict::next)
      order.advance(number);
    return verdict;
  };
  EXPECT_EQ(take(0), event_verdict::next);
  EXPECT_EQ(take(1), event_verdict::next);
  EXPECT_EQ(take(5), event_verdict::gap);
  order.advance(7); // Replayed.
  EXPECT_EQ(take(6), event_verdict::seen);
  EXPECT_EQ(take(7), event_verdict::seen);
  EXPECT_EQ(take(8), event_verdict::next);
  EXPECT_EQ(take(3), event_verdict::restarted);
  order = {};
  EXPECT_EQ(take(3), event_verdict::gap) << "a subscriber that is late";
}

/// What a subscription said, as words.
class EventSubscriptionTest : public testing::Test {
protected:
  void subscribe(const std::string& events, const std::string& replay = {}) {
    auto sink = event_sink{};
    sink.apply = [this](std::string_view message) { note(std::string{message}); };
    sink.lose = [this] { note("lost"); };
    auto opened = event_subscription::open(events, replay, std::move(sink));
    ASSERT_TRUE(opened) << opened.error().detail;
    subscription_ = std::move(*opened);
  }

  void note(std::string word) {
    const auto guard = std::lock_guard{mutex_};
    words_.push_back(std::move(word));
    changed_.notify_all();
  }

  /// Waits until the last word is `last`; with `again`, called now and then.
  template <class Function>
  std::vector<std::string> wait_for(const std::string& last, Function again) {
    auto lock = std::unique_lock{mutex_};
    const auto give_up = std::chrono::steady_clock::now() + 60s;
    while ((words_.empty() || words_.back() != last)
           && std::chrono::steady_clock::now() < give_up) {
      lock.unlock();
      again();
      lock.lock();
      changed_.wait_for(lock, 20ms);
    }
    return words_;
  }

  std::vector<std::string> wait_for(const std::string& last) {
    return wait_for(last, [] {});
  }

  void publish(event_socket& socket, uint64_t number, event_replay* replay = nullptr) {
    const auto message = std::to_string(number);
    EXPECT_TRUE(socket.publish("any topic", number, message));
    if (replay != nullptr)
      replay->keep("any topic", number, message);
  }

  /// Publishes message after message until one is heard: what is sent before a subscription is
  /// known goes nowhere.
  uint64_t publish_until_heard(event_socket& socket, uint64_t first,
                               event_replay* replay = nullptr) {
    auto next = first;
    const auto give_up = std::chrono::steady_clock::now() + 60s;
    auto lock = std::unique_lock{mutex_};
    const auto before = words_.size();
    while (words_.size() == before && std::chrono::steady_clock::now() < give_up) {
      lock.unlock();
      publish(socket, next++, replay);
      lock.lock();
      changed_.wait_for(lock, 20ms);
    }
    return next;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> words_;
  // Last: its thread notes words.
  std::unique_ptr<event_subscription> subscription_;
};

std::vector<std::string> numbers(uint64_t first, uint64_t end) {
  auto words = std::vector<std::string>{};
  for (auto i = first; i < end; ++i)
    words.push_back(std::to_string(i));
  return words;
}

TEST_F(EventSubscriptionTest, MissedMessagesAreAskedForAgain) {
  auto socket = event_socket::open("tcp://127.0.0.1:*");
  auto replay = event_replay::open("tcp://127.0.0.1:*");
  ASSERT_TRUE(socket && replay);
  for (auto i = uint64_t{0}; i < 10; ++i)
    publish(**socket, i, replay->get());
  subscribe((*socket)->endpoint(), (*replay)->endpoint());
  EXPECT_EQ(wait_for("9"), numbers(0, 10)) << "before another is published";
  const auto next = publish_until_heard(**socket, 10, replay->get());
  publish(**socket, next, replay->get());
  EXPECT_EQ(wait_for(std::to_string(next)), numbers(0, next + 1)) << "all, once, in order";
}

TEST_F(EventSubscriptionTest, WithoutReplayWhatIsMissedIsLost) {
  auto socket = event_socket::open("tcp://127.0.0.1:*");
  ASSERT_TRUE(socket);
  subscribe((*socket)->endpoint());
  const auto next = publish_until_heard(**socket, 0);
  publish(**socket, next);
  wait_for(std::to_string(next));
  publish(**socket, next + 5);
  const auto words = wait_for(std::to_string(next + 5));
  ASSERT_GE(words.size(), 2u);
  EXPECT_EQ(words[words.size() - 2], "lost");
}

TEST_F(EventSubscriptionTest, APublisherThatComesBackCountsAnew) {
  auto socket = event_socket::open("tcp://127.0.0.1:*");
  ASSERT_TRUE(socket);
  const auto endpoint = (*socket)->endpoint();
  subscribe(endpoint);
  const auto next = publish_until_heard(**socket, 0);
  wait_for(std::to_string(next - 1));
  socket->reset();
  EXPECT_EQ(wait_for("lost").back(), "lost") << "as soon as it is gone";
  // Binds the same port again: '*' as a part that cannot match makes it bind.
  {
    const auto guard = std::lock_guard{mutex_};
    words_.clear();
  }
  auto again = event_socket::open("tcp://*:" + endpoint.substr(endpoint.rfind(':') + 1));
  ASSERT_TRUE(again) << again.error().detail;
  publish_until_heard(**again, next + 100);
  EXPECT_THAT(words_, Contains("lost")) << "messages that it did not hear";
}

TEST_F(EventSubscriptionTest, EndpointsThatAreNoneAreNamed) {
  const auto bad = event_subscription::open("nowhere", {}, {});
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().detail, HasSubstr("'nowhere' is no endpoint of events"));
  const auto replay = event_subscription::open("tcp://127.0.0.1:1", "elsewhere", {});
  ASSERT_FALSE(replay);
  EXPECT_THAT(replay.error().detail, HasSubstr("'elsewhere'"));
}

} // namespace
} // namespace hicache
