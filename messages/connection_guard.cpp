#include "messages/connection_guard.hpp"

#include "base/limits.hpp"
#include "messages/type_ids.hpp"

#include <caf/io/basp_broker.hpp>
#include <caf/io/middleman.hpp>
#include <caf/io/network/default_multiplexer.hpp>
#include <caf/message_handler.hpp>
#include <openssl/err.h>
#include <spdlog/spdlog.h>

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hicache {

namespace {

namespace basp = caf::io::basp;

/// How often the guard looks for peers that are silent.
constexpr auto sweep_interval = std::chrono::seconds{1};

/// Types of CAF that no message of hicache has in it. Reading them may take any amount of memory
/// (charbuf, config_value, message, str...) or does more than reading (exit, group).
constexpr auto forbidden_types
  = std::array<std::string_view, 9>{"charbuf", "config_value", "down",   "exit",    "group",
                                    "message", "open_stream",  "strmap", "upstream"};

/// A connection that a peer opened.
struct arrival {
  std::string peer;
  std::chrono::steady_clock::time_point since;
  /// True once CAF understood its first message.
  bool proven = false;
};

uint32_t payload_length(const std::vector<char>& header) {
  auto length = uint32_t{0};
  for (auto i = size_t{4}; i < 8; ++i)
    length = (length << 8) | static_cast<uint8_t>(header[i]);
  return length;
}

/// @param arrived Null for a connection that this process opened.
/// @returns why CAF must not see the header; empty if it may
std::string fault_of_header(const std::vector<char>& header, const arrival* arrived) {
  if (header.size() != basp::header_size)
    return "its header is cut short";
  const auto what = static_cast<basp::message_type>(header[0]);
  const auto length = payload_length(header);
  const auto is_new = arrived != nullptr && !arrived->proven;
  if (is_new && what != basp::message_type::client_handshake)
    return "its first message is no handshake";
  if (arrived != nullptr && what == basp::message_type::server_handshake)
    return "it answers a handshake that nobody began";
  // CAF reads the content of a handshake without looking whether there is any.
  if (length == 0 && what <= basp::message_type::client_handshake)
    return "its handshake is empty";
  const auto room = is_new ? limits::handshake_bytes : limits::actor_message_bytes;
  if (length > room)
    return "it announces " + std::to_string(length) + " bytes; expected at most "
           + std::to_string(room);
  return {};
}

/// Finds what CAF must not read without reading it: a type's name follows a '+', and each message
/// inside of a message begins with "@<>".
std::string fault_of_payload(std::string_view bytes) {
  auto messages = size_t{0};
  for (auto at = bytes.find('@'); at != bytes.npos; at = bytes.find('@', at + 1)) {
    const auto name = bytes.substr(at + 1);
    if (name.starts_with("<>") && ++messages > limits::nested_messages)
      return "its message has too many messages inside";
    if (at == 0 || bytes[at - 1] != '+')
      continue;
    for (const auto& type : forbidden_types)
      if (name.starts_with(type))
        return "its message has a part of type " + std::string{type};
  }
  return {};
}

// -- the broker that speaks with peers ----------------------------------------

/// Runs, as CAF's broker does, on the one thread that also reads and writes the sockets.
class connection_guard final : public caf::io::basp_broker {
public:
  explicit connection_guard(caf::actor_config& config) : basp_broker(config) {}

  caf::behavior make_behavior() override {
    basp_ = basp_broker::make_behavior();
    delayed_send(this, sweep_interval, atom::tick_v);
    return caf::message_handler{
      [this](const caf::io::new_connection_msg& msg) { admit(msg.handle); },
      [this](const caf::io::new_data_msg& msg) { take(msg.handle, msg.buf); },
      [this](const caf::io::connection_closed_msg& msg) { lost(msg.handle); },
      [this](atom::tick) { sweep(); },
    }
      .or_else(basp_);
  }

  /// CAF's brokers leave in their mailbox what they have not read, and are not destroyed while the
  /// thread that ran them has left something to do for them. Such a message would keep its sender,
  /// and the actor system would wait for ever for a sender with a thread of its own.
  bool cleanup(caf::error&& reason, caf::execution_unit* host) override {
    close_all();
    return scheduled_actor::cleanup(std::move(reason), host);
  }

private:
  using handle = caf::io::connection_handle;

  /// Lets CAF handle the message that is being handled.
  void pass() { basp_(current_mailbox_element()->content()); }

  /// CAF tells nobody of a connection that ends while it is accepted: OpenSSL's list of errors is
  /// all there is. It must not stay there, since it would end the next connection that is read.
  void note_tls_error() {
    if (const auto* reason = ERR_reason_error_string(ERR_peek_last_error()))
      spdlog::warn("refused a connection: TLS: {}", reason);
    ERR_clear_error();
  }

  void admit(handle peer) {
    note_tls_error();
    arrivals_[peer] = {remote_addr(peer) + ":" + std::to_string(remote_port(peer)), clock().now()};
    unproven_.push_back(peer);
    // The oldest goes, so that a flood of silent peers keeps nobody out who has something to say.
    if (unproven_.size() > limits::connections_unproven)
      refuse(unproven_.front(), "too many connections wait for their first message");
    pass();
  }

  void take(handle peer, const std::vector<char>& bytes) {
    note_tls_error();
    const auto known = ctx.find(peer);
    const auto is_payload = known != ctx.end() && known->second.cstate == basp::await_payload;
    const auto at = arrivals_.find(peer);
    auto* arrived = at == arrivals_.end() ? nullptr : &at->second;
    const auto fault = is_payload ? fault_of_payload({bytes.data(), bytes.size()})
                                  : fault_of_header(bytes, arrived);
    if (!fault.empty()) {
      refuse(peer, fault);
      return;
    }
    pass();
    if (arrived == nullptr)
      return;
    if (!ctx.contains(peer)) {
      spdlog::warn("closed the connection from {}: CAF does not understand it", arrived->peer);
      forget(peer);
    } else if (is_payload && !arrived->proven) {
      arrived->proven = true;
      std::erase(unproven_, peer);
    }
  }

  void lost(handle peer) {
    const auto* reason = ERR_reason_error_string(ERR_peek_last_error());
    const auto arrived = arrivals_.find(peer);
    if (arrived == arrivals_.end()) {
      if (reason != nullptr)
        spdlog::debug("lost a connection: TLS: {}", reason);
    } else if (!arrived->second.proven) {
      if (reason != nullptr)
        spdlog::warn("refused the connection from {}: TLS: {}", arrived->second.peer, reason);
      else
        spdlog::info("{} hung up before it said who it is", arrived->second.peer);
    }
    forget(peer);
    pass();
    ERR_clear_error();
  }

  void sweep() {
    note_tls_error();
    const auto now = clock().now();
    while (!unproven_.empty() && arrivals_[unproven_.front()].since + limits::handshake_time < now)
      refuse(unproven_.front(), "it does not say who it is");
    auto tired = std::vector<std::pair<handle, const char*>>{};
    for (const auto& [peer, arrived] : arrivals_) {
      const auto known = ctx.find(peer);
      if (known != ctx.end() && known->second.last_seen + limits::peer_silence < now)
        tired.emplace_back(peer, "it is silent");
      else if (wr_buf(peer).size() > limits::unsent_bytes)
        tired.emplace_back(peer, "it does not take what it is sent");
    }
    for (const auto& [peer, why] : tired)
      refuse(peer, why);
    delayed_send(this, sweep_interval, atom::tick_v);
  }

  void refuse(handle peer, const std::string& why) {
    const auto arrived = arrivals_.find(peer);
    spdlog::warn("closed the connection {} {}: {}", arrived == arrivals_.end() ? "to" : "from",
                 arrived == arrivals_.end() ? remote_addr(peer) : arrived->second.peer, why);
    forget(peer);
    connection_cleanup(peer, caf::sec::malformed_basp_message);
    // CAF would wait until the peer has taken what is left to send. A handle is the socket's
    // number.
    ::shutdown(static_cast<int>(peer.id()), SHUT_RDWR);
    close(peer);
  }

  void forget(handle peer) {
    arrivals_.erase(peer);
    std::erase(unproven_, peer);
  }

  caf::behavior basp_;
  std::map<handle, arrival> arrivals_;
  /// Those not proven, the oldest first.
  std::deque<handle> unproven_;
};

class guarded_middleman final : public caf::io::middleman {
public:
  explicit guarded_middleman(caf::actor_system& system) : middleman(system), backend_(&system) {}

  caf::io::network::multiplexer& backend() override { return backend_; }

  void start() override {
    // CAF asks for its broker by this name, and takes the one that is there.
    named_broker<connection_guard>(caf::atom("BASP"));
    middleman::start();
  }

private:
  caf::io::network::default_multiplexer backend_;
};

} // namespace

caf::actor_system::module* make_guarded_middleman(caf::actor_system& system) {
  return std::make_unique<guarded_middleman>(system).release();
}

} // namespace hicache
