#include "transport/page_link.hpp"

#include "base/limits.hpp"
#include "base/socket_address.hpp"
#include "base/system_message.hpp"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace hicache {

namespace {

/// Maximum header of any message.
constexpr auto header_limit = size_t{128};
static_assert(reply_header_bytes <= header_limit);

/// Pieces passed to the kernel per call.
constexpr auto pieces_at_a_time = size_t{64};

bool is_for_later() noexcept {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

int socket_of(BIO* bio) noexcept {
  return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
}

/// OpenSSL's I/O functions over the socket, without SIGPIPE when the peer has hung up.
int write_socket(BIO* bio, const char* data, int length) {
  BIO_clear_retry_flags(bio);
  const auto put = ::send(socket_of(bio), data, static_cast<size_t>(length), MSG_NOSIGNAL);
  if (put < 0 && is_for_later())
    BIO_set_retry_write(bio);
  return static_cast<int>(put);
}

int read_socket(BIO* bio, char* data, int length) {
  BIO_clear_retry_flags(bio);
  const auto got = ::recv(socket_of(bio), data, static_cast<size_t>(length), 0);
  if (got < 0 && is_for_later())
    BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

const BIO_METHOD* socket_method() {
  static const auto* const method = [] {
    auto* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "page socket");
    BIO_meth_set_write(made, write_socket);
    BIO_meth_set_read(made, read_socket);
    BIO_meth_set_ctrl(
      made, [](BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1L : 0L; });
    return made;
  }();
  return method;
}

} // namespace

void page_link::outgoing::skip(size_t bytes) {
  const auto here = std::min(bytes, head.size() - of_head);
  of_head += here;
  for (bytes -= here; bytes > 0;) {
    const auto step = std::min(bytes, pieces[whole].size() - of_piece);
    of_piece += step;
    bytes -= step;
    if (of_piece == pieces[whole].size()) {
      ++whole;
      of_piece = 0;
    }
  }
}

page_link::page_link(unique_fd socket, ssl_ctx_st* tls, bool is_server)
  : socket_(std::move(socket)), tls_(tls != nullptr ? SSL_new(tls) : nullptr, SSL_free),
    is_agreed_(tls == nullptr) {
  tune_socket(socket_.get(), limits::silent_peer_time, limits::silent_peer_probes);
  // Not every kind of socket has this option.
  static_cast<void>(::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT,
                                 &limits::page_send_bytes, sizeof(limits::page_send_bytes)));
  if (!tls_)
    return;
  auto* bio = BIO_new(socket_method());
  BIO_set_data(bio, reinterpret_cast<void*>(intptr_t{socket_.get()}));
  BIO_set_init(bio, 1);
  SSL_set_bio(tls_.get(), bio, bio);
  SSL_set_mode(tls_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE);
  if (is_server)
    SSL_set_accept_state(tls_.get());
  else
    SSL_set_connect_state(tls_.get());
}

page_link::~page_link() = default;

// -- sending ------------------------------------------------------------------

void page_link::send(page_parcel parcel) {
  auto size = parcel.front.size();
  std::erase_if(parcel.pieces, [](const auto& x) { return x.empty(); });
  for (const auto& piece : parcel.pieces)
    size += piece.size();
  const auto frame
    = page_frame_head{parcel.kind, static_cast<uint32_t>(parcel.header.size()), size};
  auto& made = unsent_.emplace_back();
  made.head.reserve(sizeof(frame) + parcel.header.size() + parcel.front.size());
  const auto append = [&](std::span<const std::byte> bytes) {
    made.head.insert(made.head.end(), bytes.begin(), bytes.end());
  };
  append(std::as_bytes(std::span{&frame, 1}));
  append(parcel.header);
  append(parcel.front);
  made.pieces = std::move(parcel.pieces);
  flush();
}

void page_link::flush() {
  if (!shake_hands())
    return;
  while (is_open_ && !unsent_.empty()) {
    auto& next = unsent_.front();
    if (!(tls_ ? write_encrypted(next) : write_some(next)))
      return;
    if (next.is_done())
      unsent_.pop_front();
  }
}

bool page_link::write_some(outgoing& next) {
  auto parts = std::array<iovec, pieces_at_a_time>{};
  auto count = size_t{0};
  const auto add = [&](std::span<const std::byte> bytes) {
    // The kernel takes a non-const pointer but only reads.
    parts[count++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
  };
  if (next.of_head < next.head.size())
    add(std::span{next.head}.subspan(next.of_head));
  for (auto i = next.whole; i < next.pieces.size() && count < parts.size(); ++i)
    add(next.pieces[i].subspan(i == next.whole ? next.of_piece : 0));
  auto message = msghdr{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  const auto put = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  if (put < 0) {
    if (!is_for_later())
      lose_socket();
    return false;
  }
  next.skip(static_cast<size_t>(put));
  return true;
}

bool page_link::write_encrypted(outgoing& next) {
  if (record_.empty()) {
    const auto add = [this](std::span<const std::byte> bytes) {
      bytes = bytes.first(std::min(bytes.size(), record_bytes - record_.size()));
      record_.insert(record_.end(), bytes.begin(), bytes.end());
    };
    record_.reserve(record_bytes);
    add(std::span{next.head}.subspan(next.of_head));
    for (auto i = next.whole; i < next.pieces.size() && record_.size() < record_bytes; ++i)
      add(next.pieces[i].subspan(i == next.whole ? next.of_piece : 0));
  }
  ERR_clear_error();
  auto written = size_t{0};
  if (SSL_write_ex(tls_.get(), record_.data(), record_.size(), &written) != 1) {
    const auto status = SSL_get_error(tls_.get(), 0);
    wants_to_write_ = status == SSL_ERROR_WANT_WRITE;
    if (status != SSL_ERROR_WANT_WRITE && status != SSL_ERROR_WANT_READ)
      lose_tls();
    return false;
  }
  next.skip(written);
  record_.clear();
  return true;
}

bool page_link::shake_hands() {
  if (is_agreed_ || !is_open_)
    return is_open_;
  ERR_clear_error();
  const auto done = SSL_do_handshake(tls_.get());
  const auto status = done == 1 ? SSL_ERROR_NONE : SSL_get_error(tls_.get(), done);
  wants_to_write_ = status == SSL_ERROR_WANT_WRITE;
  is_agreed_ = done == 1;
  if (!is_agreed_ && status != SSL_ERROR_WANT_WRITE && status != SSL_ERROR_WANT_READ)
    lose_tls();
  return is_agreed_;
}

std::span<std::span<const std::byte>> page_link::unsent_pieces() noexcept {
  if (unsent_.empty())
    return {};
  return std::span{unsent_.front().pieces}.subspan(unsent_.front().whole);
}

short page_link::events() const noexcept {
  const auto writes = is_agreed_ ? !unsent_.empty() : wants_to_write_;
  return writes ? POLLIN | POLLOUT : POLLIN;
}

// -- receiving ----------------------------------------------------------------

void page_link::pump(page_sink& sink) {
  if (!shake_hands())
    return;
  while (is_open_ && (data_.empty() ? parse(sink) : read_data(sink)))
    continue;
  // TLS reads records, whose lengths only OpenSSL knows.
  if (!tls_)
    wake_at(data_.empty() ? 1 : std::min(data_.size() - arrived_, limits::page_receive_bytes));
}

bool page_link::parse(page_sink& sink) {
  auto frame = page_frame_head{};
  auto whole = sizeof(frame);
  if (end_ - begin_ >= sizeof(frame)) {
    std::memcpy(&frame, buffer_.data() + begin_, sizeof(frame));
    if (frame.header_bytes == 0 || frame.header_bytes > header_limit
        || frame.data_bytes > reply_bytes)
      return lose("it sent what no version sends"), false;
    whole += frame.header_bytes;
  }
  if (end_ - begin_ < whole) {
    std::ranges::copy(std::span{buffer_}.subspan(begin_, end_ - begin_), buffer_.begin());
    end_ -= std::exchange(begin_, 0);
    const auto got = read_some(std::span{buffer_}.subspan(end_));
    end_ += got;
    return got > 0;
  }
  kind_ = frame.kind;
  const auto header = std::span{buffer_}.subspan(begin_ + sizeof(frame), frame.header_bytes);
  header_.assign(header.begin(), header.end());
  begin_ += whole;
  arrived_ = 0;
  if (frame.data_bytes == 0) {
    sink.take(kind_, header_, {});
    return true;
  }
  data_ = sink.place_for(kind_, header_, frame.data_bytes);
  if (data_.size() != frame.data_bytes) {
    data_ = {};
    return lose("it sent what was not requested"), false;
  }
  return true;
}

bool page_link::read_data(page_sink& sink) {
  auto rest = data_.subspan(arrived_);
  auto got = std::min(rest.size(), end_ - begin_);
  if (got > 0) {
    std::copy_n(buffer_.begin() + static_cast<ptrdiff_t>(begin_), got, rest.begin());
    begin_ += got;
  } else {
    got = read_some(rest);
  }
  arrived_ += got;
  if (arrived_ == data_.size())
    sink.take(kind_, header_, std::exchange(data_, {}));
  return got > 0;
}

void page_link::wake_at(size_t bytes) {
  if (std::exchange(wakes_at_, bytes) == bytes)
    return;
  const auto count = static_cast<int>(bytes);
  static_cast<void>(::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVLOWAT, &count, sizeof(count)));
}

size_t page_link::read_some(std::span<std::byte> into) {
  if (tls_)
    return read_encrypted(into);
  const auto got = ::recv(socket_.get(), into.data(), into.size(), 0);
  if (got > 0)
    return static_cast<size_t>(got);
  if (got == 0)
    lose(hung_up);
  else if (!is_for_later())
    lose_socket();
  return 0;
}

size_t page_link::read_encrypted(std::span<std::byte> into) {
  ERR_clear_error();
  auto got = size_t{0};
  if (SSL_read_ex(tls_.get(), into.data(), into.size(), &got) == 1)
    return got;
  const auto status = SSL_get_error(tls_.get(), 0);
  if (status == SSL_ERROR_ZERO_RETURN)
    lose(hung_up);
  else if (status != SSL_ERROR_WANT_READ && status != SSL_ERROR_WANT_WRITE)
    lose_tls();
  return 0;
}

void page_link::lose(std::string_view why) {
  if (!std::exchange(is_open_, false))
    return;
  reason_ = why;
  // Discards unsent data at once instead of leaving it to the kernel.
  constexpr auto at_once = linger{1, 0};
  static_cast<void>(::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)));
}

void page_link::lose_socket() {
  if (errno == ECONNRESET || errno == EPIPE)
    lose(hung_up);
  else if (errno == ETIMEDOUT)
    lose("it is cut off, or takes nothing");
  else
    lose(system_message(errno));
}

void page_link::lose_tls() {
  const auto code = ERR_peek_error();
  const auto* reason = ERR_reason_error_string(code);
  ERR_clear_error();
  // A peer that dies sends no TLS shutdown.
  if (reason == nullptr || ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
    lose(hung_up);
  else
    lose("TLS: " + std::string{reason});
}

} // namespace hicache
