#include "transport/event_socket.hpp"

#include "base/limits.hpp"
#include "transport/event_frames.hpp"

#include <zmq.hpp>

namespace hicache {

namespace {

/// How long closing the socket may wait to send the last messages.
constexpr auto linger_ms = 200;

class zmq_event_socket final : public event_socket {
public:
  /// @throws zmq::error_t
  explicit zmq_event_socket(const std::string& endpoint) : socket_(context_, ZMQ_PUB) {
    socket_.set(zmq::sockopt::linger, linger_ms);
    socket_.set(zmq::sockopt::sndhwm, limits::router_messages);
    const auto has
      = [&](std::string_view part) { return endpoint.find(part) != std::string::npos; };
    const auto is_bound = has("*") || has("::") || endpoint.starts_with("ipc://")
                          || endpoint.starts_with("inproc://");
    // With IPv6, 127.0.0.1 would be bound, and reported, as an IPv6 address.
    socket_.set(zmq::sockopt::ipv6, !is_bound || has("["));
    if (is_bound)
      socket_.bind(endpoint);
    else
      socket_.connect(endpoint);
    endpoint_ = socket_.get(zmq::sockopt::last_endpoint);
  }

  const std::string& endpoint() const noexcept override { return endpoint_; }

  result<void> publish(std::string_view topic, uint64_t number, std::string_view message) override {
    try {
      const auto more = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
      socket_.send(zmq::buffer(topic), more);
      socket_.send(zmq::buffer(number_frame(number)), more);
      socket_.send(zmq::buffer(message), zmq::send_flags::dontwait);
    } catch (const zmq::error_t& failure) {
      return fail(ec::io_failure,
                  "events cannot be published at " + endpoint_ + ": " + failure.what());
    }
    return {};
  }

private:
  zmq::context_t context_;
  zmq::socket_t socket_;
  std::string endpoint_;
};

} // namespace

result<std::unique_ptr<event_socket>> event_socket::open(const std::string& endpoint) {
  try {
    return std::make_unique<zmq_event_socket>(endpoint);
  } catch (const zmq::error_t& failure) {
    return fail(ec::invalid_argument, "'" + endpoint
                                        + "' is no endpoint for events: " + failure.what()
                                        + "; expected one such as tcp://127.0.0.1:*, tcp://*:5557 "
                                          "or ipc:///run/events");
  }
}

} // namespace hicache
