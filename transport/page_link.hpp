#pragma once

#include "base/unique_fd.hpp"
#include "transport/page_messages.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct ssl_st;
struct ssl_ctx_st;

/// What carries messages between page_client and page_server, and the socket that does. Internal to
/// transport/.
namespace hicache {

/// A message to a peer.
struct page_parcel {
  page_message kind{};
  std::vector<std::byte> header;
  /// The data: these bytes, and then those pieces, which are not owned.
  std::vector<std::byte> front;
  std::vector<std::span<const std::byte>> pieces;
};

/// Takes what a peer sends.
class page_sink {
public:
  /// A message with data begins.
  /// @returns `length` bytes for its data, which may be written to until take() or the end of the
  /// connection; fewer refuse the message, which ends the connection
  virtual std::span<std::byte> place_for(page_message kind, std::span<const std::byte> header,
                                         size_t length)
    = 0;

  /// A message is here.
  /// @param data Where place_for said; empty if the message has none.
  virtual void take(page_message kind, std::span<const std::byte> header,
                    std::span<const std::byte> data)
    = 0;

protected:
  ~page_sink() = default;
};

/// A way to send a peer messages. Never blocks. One thread at a time.
class page_carrier {
public:
  virtual ~page_carrier() = default;

  virtual void send(page_parcel parcel) = 0;

  /// Whether a message that is sent now does not wait behind others.
  virtual bool has_room() const noexcept = 0;

  /// False once the peer is gone, or has sent what no peer sends.
  virtual bool is_open() const noexcept = 0;
};

/// One end of a connection by a stream socket, with TLS or without.
class page_link final : public page_carrier {
public:
  /// The reason of a connection that the peer merely ended.
  static constexpr auto hung_up = std::string_view{"it hung up"};

  /// @param socket Connected or about to be, and non-blocking.
  /// @param tls Null: in clear.
  page_link(unique_fd socket, ssl_ctx_st* tls, bool is_server);

  page_link(const page_link&) = delete;

  page_link& operator=(const page_link&) = delete;

  ~page_link() override;

  /// Sends what the socket takes now; flush() goes on.
  void send(page_parcel parcel) override;

  void flush();

  bool has_room() const noexcept override { return unsent_.empty(); }

  bool is_open() const noexcept override { return is_open_; }

  /// Reads all there is and gives it to the sink, which may not destroy the link meanwhile.
  void pump(page_sink& sink);

  /// The pieces that the message under way has still to send, the first perhaps in part. They may
  /// be replaced by others of the same length.
  std::span<std::span<const std::byte>> unsent_pieces() noexcept;

  /// Why the connection ended: a sentence about the peer ("it ...").
  const std::string& reason() const noexcept { return reason_; }

  /// Ends the connection.
  void lose(std::string_view why);

  int fd() const noexcept { return socket_.get(); }

  /// What poll(2) should wait for.
  short events() const noexcept;

private:
  struct outgoing {
    /// The frame, the header, and the front of the data.
    std::vector<std::byte> head;
    std::vector<std::span<const std::byte>> pieces;
    /// What was sent: of the head, whole pieces, and of the piece after them.
    size_t of_head = 0;
    size_t whole = 0;
    size_t of_piece = 0;

    bool is_done() const noexcept { return of_head == head.size() && whole == pieces.size(); }

    void skip(size_t bytes);
  };

  static constexpr size_t buffer_bytes = size_t{4} << 10;
  static constexpr size_t record_bytes = size_t{16} << 10;

  /// @returns how many bytes came; 0 if there are none now, or the connection ended
  size_t read_some(std::span<std::byte> into);

  size_t read_encrypted(std::span<std::byte> into);

  /// @returns false if the socket takes nothing more now
  bool write_some(outgoing& next);

  bool write_encrypted(outgoing& next);

  /// After a call of the system failed that is not for later.
  void lose_socket();

  void lose_tls();

  /// Goes on with what OpenSSL waited for. @returns whether there is a connection by now
  bool shake_hands();

  /// Takes apart what is in the buffer. @returns whether there was enough for a step
  bool parse(page_sink& sink);

  bool read_data(page_sink& sink);

  unique_fd socket_;
  std::unique_ptr<ssl_st, void (*)(ssl_st*)> tls_;
  bool is_agreed_;
  bool wants_to_write_ = false;
  bool is_open_ = true;
  std::string reason_;

  std::deque<outgoing> unsent_;
  /// With TLS: bytes that OpenSSL has to be given again, until it took them.
  std::vector<std::byte> record_;

  std::array<std::byte, buffer_bytes> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  /// The message under way; its data go on at `arrived_` of `data_`.
  page_message kind_{};
  std::vector<std::byte> header_;
  std::span<std::byte> data_;
  size_t arrived_ = 0;
};

/// Sets what every connection for pages is set to: nothing waits for more to send, and a peer that
/// is cut off is noticed.
void tune_page_socket(int socket) noexcept;

} // namespace hicache
