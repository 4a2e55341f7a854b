#include "rpc/sockets.hpp"

#include "base/socket_address.hpp"
#include "base/system_message.hpp"

#include <kj/debug.h>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <thread>
#include <utility>

namespace hicache {

namespace {

/// Connections queued for accept; the system may limit it further.
constexpr auto backlog = 1024;

using socket_addresses = std::vector<socket_address>;

/// @param flags AI_NUMERICHOST: no name resolution, so it does not block.
socket_addresses look_up(const rpc::endpoint& where, int flags) {
  return addresses_of(where.host, std::to_string(where.port), flags);
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
  KJ_REQUIRE(fd >= 0, "no socket", system_message(errno).c_str());
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
    return refuse(system_message(errno));
  auto open = listener{fd, where};
  // Allow immediate reuse after a crash: peers expect the same address.
  const auto yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  const auto is_bound
    = where.is_path() ? bind_path(fd, where.path()) : bind(fd, at.get(), at.length) == 0;
  if (!is_bound || ::listen(fd, backlog) != 0)
    return refuse(system_message(errno));
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
  // Keep-alive probes each second once silent; the same timeout for unacknowledged data. Without
  // effect on the socket of a local peer, whose end the kernel reports.
  const auto probes = std::max(static_cast<int>(silence.count()), 2) - 1;
  KJ_IF_MAYBE (fd, stream.getFd())
    tune_socket(*fd, std::chrono::seconds{1}, probes);
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
