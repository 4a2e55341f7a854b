#pragma once

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
struct bio_st;
struct ssl_ctx_st;

namespace hicache {

/// What a message between ranks is about.
enum class rank_message : uint8_t {
  /// A rank to rank 0, first: who it is (rank_hello).
  hello = 1,
  /// Rank 0: you do not belong here. The body is a sentence.
  refused = 2,
  /// Rank 0: all have come. The body is every rank's hello, in order.
  all_here = 3,
  /// A rank to rank 0: what its host brings to a reduction.
  offer = 4,
  /// Rank 0: what a reduction ended with.
  minima = 5,
  /// Rank 0: no reduction can end any more. The body is a sentence.
  failed = 6,
  /// Both ways, last: this rank ends.
  leaving = 7,
};

/// A message between ranks of the same version on machines of the same byte order.
struct rank_frame {
  rank_message kind{};
  /// Of offers and minima.
  uint8_t channel = 0;
  uint64_t number = 0;
  std::vector<std::byte> body;
};

/// One rank's connection to another one: messages over a stream socket, with TLS or without. Never
/// blocks. One thread at a time.
class rank_link {
public:
  /// @param socket Connected and non-blocking.
  /// @param tls Null: in clear.
  /// @param body_bytes As in allow().
  rank_link(unique_fd socket, ssl_ctx_st* tls, bool is_server, size_t body_bytes);

  rank_link(const rank_link&) = delete;

  rank_link& operator=(const rank_link&) = delete;

  ~rank_link();

  /// Accepts messages whose body has up to so many bytes from now on.
  void allow(size_t body_bytes) noexcept { body_bytes_ = body_bytes; }

  /// Queues a message and sends what the socket takes.
  void send(rank_message kind, std::span<const std::byte> body, uint8_t channel = 0,
            uint64_t number = 0);

  /// Writes what the socket takes, and reads until there is a message to take.
  void pump();

  /// The next message that was read.
  std::optional<rank_frame> next();

  /// Sends what the socket takes and says that nothing follows. What the peer has sent is read,
  /// since closing a socket with unread bytes may take from the peer what it was sent.
  void finish();

  /// False once the peer is gone or has sent what no rank sends; messages that came before can
  /// still be taken.
  bool is_open() const noexcept { return is_open_; }

  /// Why the connection ended, if the peer did not merely close it.
  const std::string& reason() const noexcept { return reason_; }

  int fd() const noexcept { return socket_.get(); }

  /// What poll(2) should wait for.
  short events() const noexcept;

private:
  /// @returns false if the socket has nothing more now
  bool read_some();

  void write_some();

  /// Moves what arrived from TLS to clear, and goes on with the handshake.
  void decrypt();

  /// Moves what OpenSSL has to send to out_.
  void take_encrypted();

  void encrypt(std::span<const std::byte> bytes);

  /// Splits what was read into messages.
  void split();

  void lose(const std::string& why);

  unique_fd socket_;
  size_t body_bytes_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> tls_;
  bool is_agreed_ = true;
  bool is_open_ = true;
  std::string reason_;
  /// In clear; waits for the handshake.
  std::vector<std::byte> unsent_;
  /// As the socket takes it, from sent_ on.
  std::vector<std::byte> out_;
  size_t sent_ = 0;
  /// In clear.
  std::vector<std::byte> in_;
  std::deque<rank_frame> frames_;
};

} // namespace hicache
