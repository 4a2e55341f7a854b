#include "transport/event_replay.hpp"

#include "transport/event_frames.hpp"

#include <spdlog/spdlog.h>

#include <zmq.hpp>

#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace hicache {

namespace {

/// As many messages as SGLang and vLLM keep, bounded in bytes too.
constexpr auto kept_messages = size_t{10'000};
constexpr auto kept_bytes = size_t{64} << 20;

/// Frames queued for a slow subscriber: two full replays.
constexpr auto waiting_frames = 2 * 4 * static_cast<int>(kept_messages);

constexpr auto end_of_replay = ~uint64_t{0};

struct kept_message {
  std::string topic;
  uint64_t number = 0;
  std::string bytes;
};

using kept_message_ptr = std::shared_ptr<const kept_message>;

/// A frame that shares the message's bytes.
zmq::message_t frame_of(const kept_message_ptr& message) {
  auto owner = std::make_unique<kept_message_ptr>(message);
  // ZeroMQ takes a non-const pointer but does not write.
  auto* bytes = const_cast<char*>(message->bytes.data());
  auto frame = zmq::message_t{
    bytes, message->bytes.size(),
    [](void*, void* hint) { delete static_cast<kept_message_ptr*>(hint); }, owner.get()};
  static_cast<void>(owner.release());
  return frame;
}

class zmq_event_replay final : public event_replay {
public:
  /// @throws zmq::error_t
  explicit zmq_event_replay(const std::string& endpoint) : socket_(context_, ZMQ_ROUTER) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::sndhwm, waiting_frames);
    // Reports subscribers that are gone or too slow instead of dropping frames silently.
    socket_.set(zmq::sockopt::router_mandatory, true);
    socket_.set(zmq::sockopt::ipv6, endpoint.find('[') != std::string::npos);
    socket_.bind(endpoint);
    endpoint_ = socket_.get(zmq::sockopt::last_endpoint);
    thread_ = std::thread{[this] { serve(); }};
  }

  ~zmq_event_replay() override {
    context_.shutdown();
    thread_.join();
  }

  const std::string& endpoint() const noexcept override { return endpoint_; }

  void keep(std::string_view topic, uint64_t number, std::string_view message) override {
    auto kept = std::make_shared<const kept_message>(
      kept_message{std::string{topic}, number, std::string{message}});
    const auto guard = std::lock_guard{mutex_};
    bytes_ += kept->bytes.size();
    messages_.push_back(std::move(kept));
    while (messages_.size() > kept_messages || bytes_ > kept_bytes) {
      bytes_ -= messages_.front()->bytes.size();
      messages_.pop_front();
    }
  }

private:
  void serve() {
    while (true) {
      auto frames = std::vector<zmq::message_t>{};
      try {
        do {
          if (!socket_.recv(frames.emplace_back()))
            frames.pop_back();
        } while (!frames.empty() && frames.back().more());
      } catch (const zmq::error_t& failure) {
        if (failure.num() == ETERM)
          return;
        continue; // Interrupted by a signal.
      }
      if (frames.size() == 3 && frames[1].size() == 0 && frames[2].size() == sizeof(uint64_t))
        answer(frames[0], number_in(frames[2]));
      else
        spdlog::warn("a request for events is none; expected an empty frame and 8 bytes");
    }
  }

  static uint64_t number_in(const zmq::message_t& frame) {
    auto number = uint64_t{0};
    for (const auto byte : frame.to_string_view())
      number = number << 8 | static_cast<unsigned char>(byte);
    return number;
  }

  void answer(const zmq::message_t& to, uint64_t first) {
    auto wanted = std::vector<kept_message_ptr>{};
    {
      const auto guard = std::lock_guard{mutex_};
      for (const auto& message : messages_)
        if (message->number >= first)
          wanted.push_back(message);
    }
    try {
      for (const auto& message : wanted)
        send(to, message->topic, message->number, frame_of(message));
      send(to, {}, end_of_replay, zmq::message_t{});
    } catch (const zmq::error_t& failure) {
      spdlog::warn("a subscriber did not get the events that it asked for: {}", failure.what());
    }
  }

  void send(const zmq::message_t& to, std::string_view topic, uint64_t number,
            zmq::message_t message) {
    const auto more = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
    const auto is_sent = [](const zmq::send_result_t& sent) {
      if (!sent)
        throw zmq::error_t{EAGAIN};
    };
    is_sent(socket_.send(zmq::buffer(to.data(), to.size()), more));
    is_sent(socket_.send(zmq::message_t{}, more));
    is_sent(socket_.send(zmq::buffer(topic), more));
    is_sent(socket_.send(zmq::buffer(number_frame(number)), more));
    is_sent(socket_.send(std::move(message), zmq::send_flags::dontwait));
  }

  zmq::context_t context_;
  zmq::socket_t socket_;
  std::string endpoint_;
  std::mutex mutex_; // Guards the following members up to the thread.
  std::deque<kept_message_ptr> messages_;
  size_t bytes_ = 0;
  std::thread thread_;
};

} // namespace

result<std::unique_ptr<event_replay>> event_replay::open(const std::string& endpoint) {
  try {
    return std::make_unique<zmq_event_replay>(endpoint);
  } catch (const zmq::error_t& failure) {
    return fail(ec::invalid_argument,
                "'" + endpoint + "' is no endpoint to be asked at for events: " + failure.what()
                  + "; expected one such as tcp://127.0.0.1:*, tcp://*:5558 "
                    "or ipc:///run/replay");
  }
}

} // namespace hicache
