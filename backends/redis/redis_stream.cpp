#include "backends/redis/redis_stream.hpp"

#include "backends/cluster/dns_client.hpp"
#include "base/system_message.hpp"
#include "base/try.hpp"
#include "transport/addresses.hpp"

#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <utility>

namespace hicache {

namespace {

/// Payload of a TLS record: the protocol's bound.
constexpr auto record_bytes = size_t{16} << 10;

/// Makes keys with a passphrase fail; otherwise OpenSSL would prompt on the terminal.
int no_passphrase(char*, int, int, void*) {
  return -1;
}

/// Like write() of OpenSSL's own sockets, but a closed connection raises no SIGPIPE.
int write_to_socket(BIO* socket, const char* bytes, int size) {
  auto fd = -1;
  BIO_get_fd(socket, &fd);
  BIO_clear_retry_flags(socket);
  const auto sent = ::send(fd, bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
  if (sent <= 0 && BIO_sock_should_retry(static_cast<int>(sent)) != 0)
    BIO_set_retry_write(socket);
  return static_cast<int>(sent);
}

/// OpenSSL's sockets with another write().
const BIO_METHOD* socket_method() {
  using owner = std::unique_ptr<BIO_METHOD, void (*)(BIO_METHOD*)>;
  static const auto method = [] {
    const auto* const base = BIO_s_socket();
    auto made = owner{BIO_meth_new(BIO_TYPE_SOCKET, "socket without SIGPIPE"), BIO_meth_free};
    BIO_meth_set_write(made.get(), write_to_socket);
    BIO_meth_set_read(made.get(), BIO_meth_get_read(base));
    BIO_meth_set_ctrl(made.get(), BIO_meth_get_ctrl(base));
    BIO_meth_set_create(made.get(), BIO_meth_get_create(base));
    BIO_meth_set_destroy(made.get(), BIO_meth_get_destroy(base));
    return made;
  }();
  return method.get();
}

std::string tls_reason() {
  const auto* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return reason != nullptr ? reason : "unknown";
}

tl::unexpected<error> unusable(const char* setting, const std::string& file, const char* expected) {
  return fail(ec::invalid_argument, std::string{setting} + ": '" + file + "' is not " + expected
                                      + " (" + tls_reason() + ")");
}

tl::unexpected<error> unreachable(const std::string& server, const std::string& why) {
  return fail(ec::peer_unreachable, "redis at " + server + ": " + why);
}

result<std::vector<sockaddr_storage>> addresses_of(const rpc::endpoint& where) {
  const auto port = std::to_string(where.port);
  if (const auto known = resolve(where.host, port, AI_NUMERICHOST))
    return std::vector{*known};
  auto stop = interruption{};
  const auto numbers = ask_hosts({}, {where.host}, stop).at(0);
  if (!numbers)
    return unreachable(to_string(where), numbers.error().detail);
  auto addresses = std::vector<sockaddr_storage>{};
  for (const auto& number : numbers->numbers)
    if (const auto address = resolve(number, port, AI_NUMERICHOST))
      addresses.push_back(*address);
  if (addresses.empty())
    return unreachable(to_string(where), "there is no such host");
  return addresses;
}

result<unique_fd> connect_to(const sockaddr_storage& address, const std::string& server,
                             time_point until) {
  auto socket = unique_fd{
    ::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP)};
  if (!socket)
    return unreachable(server, system_message(errno));
  const auto on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  if (::connect(socket.get(), to, address_length(address)) == 0)
    return socket;
  if (errno != EINPROGRESS)
    return unreachable(server, system_message(errno));
  if (!wait_for_socket(socket.get(), POLLOUT, until))
    return fail(ec::deadline_exceeded, "redis at " + server + " accepts no connection");
  auto failed = 0;
  auto size = socklen_t{sizeof(failed)};
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &failed, &size) != 0 || failed != 0)
    return unreachable(server, system_message(failed));
  return socket;
}

bool is_number(const std::string& host) {
  return resolve(host, "1", AI_NUMERICHOST).has_value();
}

} // namespace

time_point machine_time() {
  return monotonic_clock{}.now();
}

int poll_time(time_point until) {
  const auto now = machine_time();
  if (until <= now)
    return 0;
  const auto left = std::min<duration>(until - now, std::chrono::minutes{1});
  return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(left).count());
}

bool wait_for_socket(int socket, short events, time_point until) {
  while (true) {
    auto entry = pollfd{socket, events, 0};
    if (::poll(&entry, 1, poll_time(until)) > 0)
      return true;
    if (machine_time() >= until)
      return false;
  }
}

result<redis_tls_context> load_redis_tls(const redis_tls& settings) {
  if (!settings.is_used)
    return redis_tls_context{};
  if (settings.certificate_file.empty() != settings.key_file.empty())
    return fail(ec::invalid_argument, "tls_cert and tls_key belong together; expected both or "
                                      "neither");
  const auto context = redis_tls_context{SSL_CTX_new(TLS_client_method()), SSL_CTX_free};
  if (!context)
    return fail(ec::io_failure, "OpenSSL does not start");
  ERR_clear_error();
  SSL_CTX_set_default_passwd_cb(context.get(), no_passphrase);
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  // A repeated send may come from other memory, and need not send everything.
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  const auto& ca = settings.ca_file;
  if (ca.empty() ? SSL_CTX_set_default_verify_paths(context.get()) != 1
                 : SSL_CTX_load_verify_locations(context.get(), ca.c_str(), nullptr) != 1)
    return unusable("tls_ca", ca, "a list of certificates in PEM");
  if (settings.certificate_file.empty())
    return context;
  if (SSL_CTX_use_certificate_chain_file(context.get(), settings.certificate_file.c_str()) != 1)
    return unusable("tls_cert", settings.certificate_file, "a certificate in PEM");
  if (SSL_CTX_use_PrivateKey_file(context.get(), settings.key_file.c_str(), SSL_FILETYPE_PEM) != 1)
    return unusable("tls_key", settings.key_file,
                    "the certificate's key in PEM, without a passphrase");
  return context;
}

result<redis_stream> redis_stream::open(const rpc::endpoint& where,
                                        const redis_tls_context& context, const redis_tls& tls,
                                        time_point until) {
  const auto server = to_string(where);
  const auto addresses = HICACHE_TRY(addresses_of(where));
  auto connected = result<unique_fd>{};
  for (const auto& address : addresses) {
    connected = connect_to(address, server, until);
    if (connected || machine_time() >= until)
      break;
  }
  auto socket = HICACHE_TRY(std::move(connected));
  auto stream = redis_stream{std::move(socket), server};
  if (context)
    HICACHE_TRY(stream.start_tls(where, context, tls, until));
  return stream;
}

result<void> redis_stream::start_tls(const rpc::endpoint& where, const redis_tls_context& context,
                                     const redis_tls& tls, time_point until) {
  tls_.reset(SSL_new(context.get()));
  auto* const bytes = BIO_new(socket_method());
  if (!tls_ || bytes == nullptr)
    return fail(ec::io_failure, "OpenSSL makes no connection");
  BIO_set_fd(bytes, socket_.get(), BIO_NOCLOSE);
  SSL_set_bio(tls_.get(), bytes, bytes);
  const auto& name = tls.server_name.empty() ? where.host : tls.server_name;
  const auto is_named
    = is_number(name) ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_.get()), name.c_str())
                      : SSL_set1_host(tls_.get(), name.c_str())
                          & static_cast<int>(SSL_set_tlsext_host_name(tls_.get(), name.c_str()));
  if (is_named != 1)
    return fail(ec::invalid_argument, "'" + name + "' is not a host that a certificate can carry");
  while (true) {
    ERR_clear_error();
    const auto outcome = SSL_connect(tls_.get());
    if (outcome == 1)
      return {};
    const auto why = SSL_get_error(tls_.get(), outcome);
    if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE) {
      const auto verified = SSL_get_verify_result(tls_.get());
      return unreachable(server_, "TLS: "
                                    + (verified != X509_V_OK
                                         ? std::string{X509_verify_cert_error_string(verified)}
                                         : tls_reason()));
    }
    if (!wait_for_socket(socket_.get(), why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, until))
      return fail(ec::deadline_exceeded, "redis at " + server_ + " ends no TLS handshake");
  }
}

result<size_t> redis_stream::tls_outcome(int outcome) {
  if (outcome > 0)
    return static_cast<size_t>(outcome);
  switch (SSL_get_error(tls_.get(), outcome)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return 0;
    case SSL_ERROR_ZERO_RETURN:
      return unreachable(server_, "the server closed the connection");
    default:
      return unreachable(server_, "TLS: " + tls_reason());
  }
}

result<size_t> redis_stream::send_tls(std::span<const iovec> pieces) {
  record_.clear();
  for (const auto& piece : pieces) {
    const auto* const bytes = static_cast<const std::byte*>(piece.iov_base);
    const auto count = std::min(piece.iov_len, record_bytes - record_.size());
    record_.insert(record_.end(), bytes, bytes + count);
    if (record_.size() == record_bytes)
      break;
  }
  ERR_clear_error();
  return tls_outcome(SSL_write(tls_.get(), record_.data(), static_cast<int>(record_.size())));
}

result<size_t> redis_stream::send(std::span<const iovec> pieces) {
  if (tls_)
    return send_tls(pieces);
  auto message = msghdr{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = std::min<size_t>(pieces.size(), IOV_MAX);
  while (true) {
    const auto sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0)
      return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK)
      return 0;
    if (errno != EINTR)
      return unreachable(server_, system_message(errno));
  }
}

result<size_t> redis_stream::receive(std::span<std::byte> target) {
  if (tls_) {
    ERR_clear_error();
    const auto room = std::min<size_t>(target.size(), INT_MAX);
    return tls_outcome(SSL_read(tls_.get(), target.data(), static_cast<int>(room)));
  }
  while (true) {
    const auto received = ::recv(socket_.get(), target.data(), target.size(), 0);
    if (received > 0)
      return static_cast<size_t>(received);
    if (received == 0)
      return unreachable(server_, "the server closed the connection");
    if (errno == EAGAIN || errno == EWOULDBLOCK)
      return 0;
    if (errno != EINTR)
      return unreachable(server_, system_message(errno));
  }
}

bool redis_stream::is_stale() const noexcept {
  auto entry = pollfd{socket_.get(), POLLIN | POLLRDHUP, 0};
  // With TLS 1.3 the server may have sent session tickets.
  constexpr auto ended = POLLRDHUP | POLLHUP | POLLERR;
  return ::poll(&entry, 1, 0) > 0 && (!tls_ || (entry.revents & ended) != 0);
}

} // namespace hicache
