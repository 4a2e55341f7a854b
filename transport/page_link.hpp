#pragma once

#include "base/immovable.hpp"
#include "base/unique_fd.hpp"
#include "transport/page_messages.hpp"

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct ssl_st;
struct ssl_ctx_st;

/// The interfaces that carry messages between page_client and page_server, and their implementation
/// over a socket. Internal to transport/.
namespace hicache {

struct page_parcel {
  page_message kind{};
  std::vector<std::byte> header;
  /// The data: these bytes, then the pieces, which are not owned.
  std::vector<std::byte> front;
  std::vector<std::span<const std::byte>> pieces;
};

/// Receives the messages of a peer.
class page_sink {
public:
  /// A message with data begins.
  /// @returns `length` bytes for its data, which may be written until take() or the end of the
  /// connection; fewer bytes refuse the message, which ends the connection
  virtual std::span<std::byte> place_for(page_message kind, std::span<const std::byte> header,
                                         size_t length)
    = 0;

  /// A message has arrived.
  /// @param data At the place that place_for returned; empty if the message has none.
  virtual void take(page_message kind, std::span<const std::byte> header,
                    std::span<const std::byte> data)
    = 0;

protected:
  ~page_sink() = default;
};

/// Sends messages to a peer. Never blocks. One thread at a time.
class page_carrier {
public:
  virtual ~page_carrier() = default;

  virtual void send(page_parcel parcel) = 0;

  /// Whether a message sent now would not queue behind others.
  virtual bool has_room() const noexcept = 0;

  /// False once the peer is gone or has violated the protocol.
  virtual bool is_open() const noexcept = 0;
};

/// One end of a stream socket connection, with or without TLS.
class page_link final : public page_carrier, immovable {
public:
  /// The reason of a connection that the peer simply closed.
  static constexpr auto hung_up = std::string_view{"it hung up"};

  /// @param socket Non-blocking; connected or connecting.
  /// @param tls Null: plaintext.
  page_link(unique_fd socket, ssl_ctx_st* tls, bool is_server);

  ~page_link() override;

  /// Sends what the socket accepts now; flush() continues.
  void send(page_parcel parcel) override;

  void flush();

  bool has_room() const noexcept override { return unsent_.empty(); }

  bool is_open() const noexcept override { return is_open_; }

  /// Reads all available data and passes it to the sink, which must not destroy the link meanwhile.
  void pump(page_sink& sink);

  /// The unsent pieces of the current message, the first one perhaps partly sent. They may be
  /// replaced by others of the same length.
  std::span<std::span<const std::byte>> unsent_pieces() noexcept;

  /// Why the connection ended: a sentence about the peer ("it ...").
  const std::string& reason() const noexcept { return reason_; }

  void lose(std::string_view why);

  int fd() const noexcept { return socket_.get(); }

  /// Events to poll(2) for.
  short events() const noexcept;

private:
  struct outgoing {
    /// The frame, the header, and the front of the data.
    std::vector<std::byte> head;
    std::vector<std::span<const std::byte>> pieces;
    /// Progress: bytes of the head, whole pieces, and bytes of the next piece.
    size_t of_head = 0;
    size_t whole = 0;
    size_t of_piece = 0;

    bool is_done() const noexcept { return of_head == head.size() && whole == pieces.size(); }

    void skip(size_t bytes);
  };

  static constexpr size_t buffer_bytes = size_t{4} << 10;
  static constexpr size_t record_bytes = size_t{16} << 10;

  /// @returns bytes read; 0 if none are available or the connection ended
  size_t read_some(std::span<std::byte> into);

  size_t read_encrypted(std::span<std::byte> into);

  /// @returns false if the socket accepts no more now
  bool write_some(outgoing& next);

  bool write_encrypted(outgoing& next);

  /// Ends the connection after a failed system call that cannot be retried.
  void lose_socket();

  void lose_tls();

  /// Continues the TLS handshake.
  /// @returns whether it is complete
  bool shake_hands();

  /// Parses the buffer.
  /// @returns whether there was enough data for a step
  bool parse(page_sink& sink);

  bool read_data(page_sink& sink);

  /// Makes poll(2) report input only when this many bytes are there, or the connection has ended.
  void wake_at(size_t bytes);

  unique_fd socket_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> tls_;
  bool is_agreed_;
  bool wants_to_write_ = false;
  bool is_open_ = true;
  std::string reason_;

  std::deque<outgoing> unsent_;
  /// With TLS: bytes to pass to OpenSSL again until it accepts them.
  std::vector<std::byte> record_;

  std::array<std::byte, buffer_bytes> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  /// The message being received; its data continue at `arrived_` of `data_`.
  page_message kind_{};
  std::vector<std::byte> header_;
  std::span<std::byte> data_;
  size_t arrived_ = 0;
  size_t wakes_at_ = 1;
};

} // namespace hicache
