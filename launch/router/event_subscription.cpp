#include "launch/router/event_subscription.hpp"

#include "base/check.hpp"
#include "base/limits.hpp"
#include "launch/router/event_order.hpp"
#include "transport/event_frames.hpp"

#include <spdlog/spdlog.h>

#include <zmq.hpp>

#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace hicache {

namespace {

/// How long each message of a replay may take.
constexpr auto replay_ms = 2000;

/// A longer message is none of an engine's.
constexpr auto message_bytes_max = int64_t{64} << 20;

constexpr auto end_of_replay = ~uint64_t{0};

constexpr auto changes_endpoint = "inproc://changes";

std::optional<uint64_t> number_in(const zmq::message_t& frame) {
  if (frame.size() != sizeof(uint64_t))
    return std::nullopt;
  auto number = uint64_t{0};
  for (const auto byte : frame.to_string_view())
    number = number << 8 | static_cast<unsigned char>(byte);
  return number;
}

class zmq_event_subscription final : public event_subscription {
public:
  /// @throws zmq::error_t
  zmq_event_subscription(const std::string& events, std::string replay, event_sink sink)
    : replay_(std::move(replay)), sink_(std::move(sink)), socket_(context_, ZMQ_SUB),
      changes_(context_, ZMQ_PAIR) {
    set_up(socket_);
    socket_.set(zmq::sockopt::subscribe, "");
    socket_.set(zmq::sockopt::rcvhwm, limits::router_messages);
    if (zmq_socket_monitor(socket_.handle(), changes_endpoint,
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED)
        != 0)
      throw zmq::error_t{};
    changes_.connect(changes_endpoint);
    socket_.connect(events);
    if (!replay_.empty())
      open_replay(); // Refuses a bad endpoint now.
    thread_ = std::thread{[this] { serve(); }};
  }

  ~zmq_event_subscription() override {
    context_.shutdown();
    thread_.join();
  }

private:
  using frames = std::vector<zmq::message_t>;

  static void set_up(zmq::socket_t& socket) {
    socket.set(zmq::sockopt::linger, 0);
    socket.set(zmq::sockopt::maxmsgsize, message_bytes_max);
    socket.set(zmq::sockopt::ipv6, true);
    socket.set(zmq::sockopt::reconnect_ivl_max, 1000);
  }

  zmq::socket_t open_replay() {
    auto socket = zmq::socket_t{context_, ZMQ_DEALER};
    set_up(socket);
    socket.set(zmq::sockopt::rcvtimeo, replay_ms);
    socket.connect(replay_);
    return socket;
  }

  void serve() {
    for (;;)
      try {
        auto polled = std::array{zmq::pollitem_t{changes_, 0, ZMQ_POLLIN, 0},
                                 zmq::pollitem_t{socket_, 0, ZMQ_POLLIN, 0}};
        zmq::poll(polled.data(), polled.size(), std::chrono::milliseconds{-1});
        if (polled[0].revents != 0) {
          note_change(receive(changes_));
        } else if (polled[1].revents != 0) {
          take(receive(socket_));
        }
      } catch (const zmq::error_t& failure) {
        if (failure.num() == ETERM)
          return;
        spdlog::debug("events: {}", failure.what());
      }
  }

  /// The frames of a message; none if none came in time.
  static frames receive(zmq::socket_t& socket) {
    auto message = frames{};
    do
      if (!socket.recv(message.emplace_back()))
        return {};
    while (message.back().more());
    return message;
  }

  void note_change(const frames& change) {
    auto kind = uint16_t{0};
    HICACHE_CHECK(!change.empty() && change[0].size() >= sizeof(kind));
    std::memcpy(&kind, change[0].data(), sizeof(kind));
    // A publisher that comes back is another one, and counts anew. What it has published before
    // is not sent again.
    if (kind == ZMQ_EVENT_DISCONNECTED)
      lose();
    else if (!replay_.empty())
      ask_again();
  }

  void lose() {
    order_ = {};
    sink_.lose();
  }

  /// A message as it was published: topic, number, events.
  void take(const frames& message) {
    const auto number = message.size() == 3 ? number_in(message[1]) : std::nullopt;
    if (!number)
      return spdlog::warn("a message of events is none; expected a topic, 8 bytes and events");
    auto verdict = order_.judge(*number);
    if (verdict == event_verdict::restarted) {
      lose();
      verdict = order_.judge(*number);
    }
    if (verdict == event_verdict::gap && !replay_.empty()) {
      ask_again();
      verdict = order_.compare(*number);
    }
    if (verdict == event_verdict::seen)
      return;
    if (verdict == event_verdict::gap)
      sink_.lose();
    sink_.apply(message[2].to_string_view());
    order_.advance(*number);
  }

  /// Applies the messages that the publisher kept from the first missing one on, as many as follow.
  void ask_again() {
    auto socket = open_replay();
    socket.send(zmq::message_t{}, zmq::send_flags::sndmore);
    socket.send(zmq::buffer(number_frame(order_.expected())), zmq::send_flags::none);
    for (;;) {
      const auto message = receive(socket);
      const auto number = message.size() == 4 ? number_in(message[2]) : std::nullopt;
      if (!number || *number == end_of_replay || *number < order_.expected())
        return;
      if (*number > order_.expected())
        sink_.lose(); // The publisher kept no more of them.
      sink_.apply(message[3].to_string_view());
      order_.advance(*number);
    }
  }

  const std::string replay_;
  const event_sink sink_;
  zmq::context_t context_;
  zmq::socket_t socket_;
  /// Tells of connections that begin and end.
  zmq::socket_t changes_;
  event_order order_;
  std::thread thread_;
};

} // namespace

result<std::unique_ptr<event_subscription>>
event_subscription::open(const std::string& events, const std::string& replay, event_sink sink) {
  try {
    return std::make_unique<zmq_event_subscription>(events, replay, std::move(sink));
  } catch (const zmq::error_t& failure) {
    return fail(ec::invalid_argument, "'" + events + (replay.empty() ? "" : "' or '" + replay)
                                        + "' is no endpoint of events: " + failure.what()
                                        + "; expected one such as tcp://10.0.0.1:5557 or "
                                          "ipc:///run/events");
  }
}

} // namespace hicache
