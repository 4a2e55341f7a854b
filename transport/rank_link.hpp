#pragma once

#include "base/immovable.hpp"
#include "base/unique_fd.hpp"
#include "transport/rank_limits.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

struct ssl_st;
struct ssl_ctx_st;

namespace hicache {

enum class rank_message : uint8_t {
  /// Rank to rank 0, first: its rank_hello.
  hello = 1,
  /// Rank 0: the peer does not belong to this group. The body is a sentence.
  refused = 2,
  /// Rank 0: all ranks are connected. The body is every rank's hello, in order.
  all_here = 3,
  /// Rank to rank 0: its host's offer to a reduction.
  offer = 4,
  /// Rank 0: the result of a reduction.
  minima = 5,
  /// Rank 0: no further reduction can complete. The body is a sentence.
  failed = 6,
  /// Both ways, last: this rank ends.
  leaving = 7,
};

/// A message between ranks of the same version on machines of the same byte order.
struct rank_frame {
  rank_message kind{};
  /// Set in offers and minima.
  uint8_t channel = 0;
  uint64_t number = 0;
  std::vector<std::byte> body;
};

/// Messages between two ranks over a socket, TLS or plain. Never blocks. One thread at a time.
class rank_link : immovable {
public:
  /// @param socket Connected and non-blocking.
  /// @param tls Null: plaintext.
  /// @param body_bytes As in allow().
  rank_link(unique_fd socket, ssl_ctx_st* tls, bool is_server, size_t body_bytes);

  ~rank_link();

  /// Sets the maximum body size of messages from now on.
  void allow(size_t body_bytes) noexcept { body_bytes_ = body_bytes; }

  /// Queues a message and sends what the socket accepts.
  void send(rank_message kind, std::span<const std::byte> body, uint8_t channel = 0,
            uint64_t number = 0);

  /// Sends what the socket accepts, and reads until a message is available.
  void pump();

  /// The next received message.
  std::optional<rank_frame> next();

  /// Sends what the socket accepts and shuts down writing. Drains the receive side, because closing
  /// a socket with unread bytes may discard what was sent to the peer.
  void finish();

  /// False once the peer is gone or violated the protocol; received messages remain available.
  bool is_open() const noexcept { return is_open_; }

  /// Why the connection ended; empty if the peer simply closed it.
  const std::string& reason() const noexcept { return reason_; }

  int fd() const noexcept { return socket_.get(); }

  /// Events to poll(2) for.
  short events() const noexcept;

private:
  /// @returns false if the socket has no more data now
  bool read_some();

  void write_some();

  /// Decrypts received bytes and continues the handshake.
  void decrypt();

  /// Moves OpenSSL's output to out_.
  void take_encrypted();

  void encrypt(std::span<const std::byte> bytes);

  /// Splits received bytes into messages.
  void split();

  void lose(const std::string& why);

  unique_fd socket_;
  size_t body_bytes_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> tls_;
  bool is_agreed_ = true;
  bool is_open_ = true;
  std::string reason_;
  /// Plaintext that waits for the handshake.
  std::vector<std::byte> unsent_;
  /// Bytes for the socket, from sent_ on.
  std::vector<std::byte> out_;
  size_t sent_ = 0;
  /// Received plaintext.
  std::vector<std::byte> in_;
  std::deque<rank_frame> frames_;
};

} // namespace hicache
