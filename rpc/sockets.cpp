#include "rpc/sockets.hpp"

#include <kj/debug.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace hicache {

namespace {

/// Connections queued for accept; the system may limit it further.
constexpr auto backlog = 1024;

struct socket_address {
  sockaddr_storage bytes{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

using socket_addresses = std::vector<socket_address>;

std::string reason(int code) {
  return std::generic_category().message(code);
}

socket_address path_address(const std::string& path) {
  auto to = sockaddr_un{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.data(), std::min(path.size(), sizeof(to.sun_path) - 1));
  auto address = socket_address{};
  std::memcpy(&address.bytes, &to, sizeof(to));
  address.length = sizeof(to);
  return address;
}

/// @param flags AI_NUMERICHOST: no name resolution, so it does not block.
socket_addresses look_up(const rpc::endpoint& where, int flags) {
  auto hints = addrinfo{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  auto addresses = socket_addresses{};
  if (getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found) != 0)
    return addresses;
  for (const auto* one = found; one != nullptr; one = one->ai_next) {
    auto& address = addresses.emplace_back();
    std::memcpy(&address.bytes, one->ai_addr, one->ai_addrlen);
    address.length = one->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

kj::Promise<socket_addresses> resolve(const rpc::endpoint& where) {
  if (where.is_path())
    return socket_addresses{path_address(where.path())};
  if (auto known = look_up(where, AI_NUMERICHOST); !known.empty())
    return known;
  // Resolve names on a detached thread.
  auto answer = kj::newPromiseAndCrossThreadFulfiller<socket_addresses>();
  auto fulfiller = std::make_shared<decltype(answer.fulfiller)>(kj::mv(answer.fulfiller));
  std::thread{[where, fulfiller] { (*fulfiller)->fulfill(look_up(where, 0)); }}.detach();
  return kj::mv(answer.promise);
}

kj::Promise<kj::Own<kj::AsyncIoStream>> connect_next(rpc_loop& loop, socket_addresses left,
                                                     std::chrono::seconds silence) {
  const auto to = left.front();
  left.erase(left.begin());
  const auto fd = socket(to.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  KJ_REQUIRE(fd >= 0, "no socket", reason(errno).c_str());
  constexpr auto flags = kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP
                         | kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC
                         | kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK;
  auto connected = loop.provider().wrapConnectingSocketFd(fd, to.get(), to.length, flags);
  return connected.then(
    [silence](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<kj::Own<kj::AsyncIoStream>> {
      tune(*stream, silence);
      return kj::mv(stream);
    },
    [&loop, left = std::move(left),
     silence](kj::Exception&& ex) mutable -> kj::Promise<kj::Own<kj::AsyncIoStream>> {
      if (left.empty())
        kj::throwFatalException(kj::mv(ex));
      return connect_next(loop, std::move(left), silence);
    });
}

/// Restricts a path to its owner, since any process that can open it has full access. Replaces a
/// socket left by a crash.
bool bind_path(int fd, const std::string& path, const socket_address& at) {
  const auto probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(probe, at.get(), at.length) != 0 && errno == ECONNREFUSED)
    unlink(path.c_str());
  ::close(probe);
  return bind(fd, at.get(), at.length) == 0 && chmod(path.c_str(), S_IRUSR | S_IWUSR) == 0;
}

void set_option(kj::AsyncIoStream& stream, int level, int name, int value) {
  stream.setsockopt(level, name, &value, sizeof(value));
}

bool is_path(kj::AsyncIoStream& stream) {
  auto bytes = sockaddr_storage{};
  auto length = kj::uint{sizeof(bytes)};
  stream.getsockname(reinterpret_cast<sockaddr*>(&bytes), &length);
  return bytes.ss_family != AF_INET && bytes.ss_family != AF_INET6;
}

} // namespace

kj::Promise<kj::Own<kj::AsyncIoStream>> connect_socket(rpc_loop& loop, const rpc::endpoint& where,
                                                       std::chrono::seconds silence) {
  return resolve(where).then([&loop, silence, where](socket_addresses found) {
    KJ_REQUIRE(!found.empty(), "no machine has this name", where.host.c_str());
    return connect_next(loop, std::move(found), silence);
  });
}

result<listener> open_listener(const rpc::endpoint& where) {
  const auto refuse = [&where](const std::string& why) {
    return fail(ec::invalid_argument, "cannot listen on " + to_string(where) + " (" + why
                                        + "); expected a free port of this machine");
  };
  const auto addresses
    = where.is_path() ? socket_addresses{path_address(where.path())} : look_up(where, AI_PASSIVE);
  if (addresses.empty())
    return refuse("no machine has this name");
  const auto& at = addresses.front();
  const auto fd = socket(at.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0)
    return refuse(reason(errno));
  auto open = listener{fd, where};
  // Allow immediate reuse after a crash: peers expect the same address.
  const auto yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  const auto is_bound
    = where.is_path() ? bind_path(fd, where.path(), at) : bind(fd, at.get(), at.length) == 0;
  if (!is_bound || ::listen(fd, backlog) != 0)
    return refuse(reason(errno));
  if (where.is_path())
    return open;
  auto bytes = sockaddr_storage{};
  auto length = socklen_t{sizeof(bytes)};
  getsockname(fd, reinterpret_cast<sockaddr*>(&bytes), &length);
  const auto port = bytes.ss_family == AF_INET
                      ? reinterpret_cast<const sockaddr_in&>(bytes).sin_port
                      : reinterpret_cast<const sockaddr_in6&>(bytes).sin6_port;
  return listener{open.release(), {where.host, ntohs(port)}};
}

void tune(kj::AsyncIoStream& stream, std::chrono::seconds silence) {
  if (is_path(stream))
    return; // The kernel reports the end of a local peer.
  // Keep-alive probes each second once silent; the same timeout for unacknowledged data.
  const auto seconds = std::max(static_cast<int>(silence.count()), 2);
  set_option(stream, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(stream, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(stream, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(stream, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(stream, IPPROTO_TCP, TCP_KEEPCNT, seconds - 1);
  set_option(stream, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * seconds);
}

std::string peer_name(kj::AsyncIoStream& stream) {
  auto bytes = sockaddr_storage{};
  auto length = kj::uint{sizeof(bytes)};
  auto host = std::array<char, NI_MAXHOST>{};
  auto port = std::array<char, NI_MAXSERV>{};
  try {
    stream.getpeername(reinterpret_cast<sockaddr*>(&bytes), &length);
  } catch (const kj::Exception&) {
    return "an unknown peer"; // Disconnected already.
  }
  if (bytes.ss_family != AF_INET && bytes.ss_family != AF_INET6)
    return "a process of this machine";
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&bytes), length, host.data(), host.size(),
                  port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV)
      != 0)
    return "an unknown peer";
  return std::string{host.data()} + ":" + port.data();
}

} // namespace hicache
