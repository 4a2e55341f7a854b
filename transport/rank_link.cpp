#include "transport/rank_link.hpp"

#include "base/system_message.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace hicache {

namespace {

struct frame_header {
  uint32_t body_bytes = 0;
  rank_message kind{};
  uint8_t channel = 0;
  uint16_t unused = 0;
  uint64_t number = 0;
};
static_assert(sizeof(frame_header) == 16);

constexpr auto chunk_bytes = size_t{64} << 10;

/// Bound on what is drained from an ending connection; a rank has less in flight.
constexpr auto unread_chunks = 16;

template <class T>
std::span<const std::byte> bytes_of(const T& x) {
  return std::as_bytes(std::span{&x, 1});
}

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

std::string take_tls_reason() {
  const auto* reason = ERR_reason_error_string(ERR_peek_error());
  auto text = "TLS: " + std::string{reason != nullptr ? reason : "unknown"};
  ERR_clear_error();
  return text;
}

} // namespace

rank_link::rank_link(unique_fd socket, ssl_ctx_st* tls, bool is_server, size_t body_bytes)
  : socket_(std::move(socket)), body_bytes_(body_bytes),
    tls_(tls != nullptr ? SSL_new(tls) : nullptr, SSL_free), is_agreed_(tls == nullptr) {
  if (!tls_)
    return;
  SSL_set_bio(tls_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  if (is_server)
    SSL_set_accept_state(tls_.get());
  else
    SSL_set_connect_state(tls_.get());
  decrypt(); // A client starts the handshake.
}

rank_link::~rank_link() = default;

void rank_link::send(rank_message kind, std::span<const std::byte> body, uint8_t channel,
                     uint64_t number) {
  if (!is_open_)
    return;
  const auto header = frame_header{static_cast<uint32_t>(body.size()), kind, channel, 0, number};
  auto message = std::vector<std::byte>{};
  message.reserve(sizeof(header) + body.size());
  append(message, bytes_of(header));
  append(message, body);
  if (is_agreed_)
    encrypt(message);
  else
    append(unsent_, message);
  write_some();
}

void rank_link::pump() {
  while (is_open_ && frames_.empty() && read_some())
    continue;
  write_some();
}

std::optional<rank_frame> rank_link::next() {
  if (frames_.empty())
    return std::nullopt;
  auto first = std::move(frames_.front());
  frames_.pop_front();
  return first;
}

void rank_link::finish() {
  write_some();
  ::shutdown(socket_.get(), SHUT_WR);
  for (auto chunk = 0; chunk < unread_chunks && is_open_ && read_some(); ++chunk)
    continue;
}

short rank_link::events() const noexcept {
  return sent_ < out_.size() ? POLLIN | POLLOUT : POLLIN;
}

bool rank_link::read_some() {
  auto chunk = std::array<std::byte, chunk_bytes>{};
  const auto got = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    return false;
  if (got < 0 && errno == EINTR)
    return true;
  if (got <= 0) {
    lose(got == 0 || errno == ECONNRESET ? "" : system_message(errno));
    return false;
  }
  const auto bytes = std::span{chunk}.first(static_cast<size_t>(got));
  if (tls_) {
    BIO_write(SSL_get_rbio(tls_.get()), bytes.data(), static_cast<int>(bytes.size()));
    decrypt();
  } else {
    append(in_, bytes);
  }
  split();
  return true;
}

void rank_link::write_some() {
  while (is_open_ && sent_ < out_.size()) {
    const auto put = ::send(socket_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR)
      continue;
    if (put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      return;
    if (put < 0) {
      // Read what the peer sent before it went away.
      while (is_open_ && read_some())
        continue;
      return lose("");
    }
    sent_ += static_cast<size_t>(put);
  }
  out_.clear();
  sent_ = 0;
}

void rank_link::decrypt() {
  ERR_clear_error();
  if (!is_agreed_) {
    const auto done = SSL_do_handshake(tls_.get());
    const auto status = done == 1 ? SSL_ERROR_NONE : SSL_get_error(tls_.get(), done);
    take_encrypted();
    if (done != 1) {
      if (status != SSL_ERROR_WANT_READ) {
        const auto why = take_tls_reason();
        write_some(); // Sends the TLS alert.
        lose(why);
      }
      return;
    }
    is_agreed_ = true;
    encrypt(std::exchange(unsent_, {}));
  }
  auto chunk = std::array<std::byte, chunk_bytes>{};
  auto size = size_t{0};
  while (SSL_read_ex(tls_.get(), chunk.data(), chunk.size(), &size) == 1)
    append(in_, std::span{chunk}.first(size));
  const auto status = SSL_get_error(tls_.get(), 0);
  take_encrypted();
  if (status != SSL_ERROR_WANT_READ && status != SSL_ERROR_ZERO_RETURN)
    lose(take_tls_reason());
}

void rank_link::encrypt(std::span<const std::byte> bytes) {
  if (!tls_)
    return append(out_, bytes);
  ERR_clear_error();
  auto written = size_t{0};
  if (!bytes.empty() && SSL_write_ex(tls_.get(), bytes.data(), bytes.size(), &written) != 1)
    lose(take_tls_reason());
  take_encrypted();
}

void rank_link::take_encrypted() {
  auto* from = SSL_get_wbio(tls_.get());
  const auto size = BIO_ctrl_pending(from);
  const auto before = out_.size();
  out_.resize(before + size);
  if (size > 0)
    BIO_read(from, out_.data() + before, static_cast<int>(size));
}

void rank_link::split() {
  auto at = size_t{0};
  auto header = frame_header{};
  while (in_.size() - at >= sizeof(header)) {
    std::memcpy(&header, in_.data() + at, sizeof(header));
    if (header.body_bytes > body_bytes_) {
      lose("it sent what no rank of this version sends");
      break;
    }
    if (in_.size() - at - sizeof(header) < header.body_bytes)
      break;
    const auto* body = in_.data() + at + sizeof(header);
    frames_.push_back(
      {header.kind, header.channel, header.number, {body, body + header.body_bytes}});
    at += sizeof(header) + header.body_bytes;
  }
  in_.erase(in_.begin(), in_.begin() + static_cast<ptrdiff_t>(at));
}

void rank_link::lose(const std::string& why) {
  if (is_open_)
    reason_ = why;
  is_open_ = false;
}

} // namespace hicache
