#include "base/socket_address.hpp"

#include "base/unique_fd.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace hicache {

socket_address path_address(const std::string& path) {
  auto to = sockaddr_un{};
  to.sun_family = AF_UNIX;
  std::memcpy(to.sun_path, path.data(), std::min(path.size(), sizeof(to.sun_path) - 1));
  auto address = socket_address{};
  std::memcpy(&address.bytes, &to, sizeof(to));
  address.length = sizeof(to);
  return address;
}

std::vector<socket_address> addresses_of(const std::string& host, const std::string& port,
                                         int flags) {
  auto hints = addrinfo{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  auto* found = static_cast<addrinfo*>(nullptr);
  auto addresses = std::vector<socket_address>{};
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0)
    return addresses;
  for (const auto* one = found; one != nullptr; one = one->ai_next) {
    auto& address = addresses.emplace_back();
    std::memcpy(&address.bytes, one->ai_addr, one->ai_addrlen);
    address.length = one->ai_addrlen;
  }
  ::freeaddrinfo(found);
  return addresses;
}

bool is_ip_address(const std::string& host) {
  auto bytes = std::array<unsigned char, sizeof(in6_addr)>{};
  return inet_pton(AF_INET, host.c_str(), bytes.data()) == 1
         || inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

bool bind_path(int socket, const std::string& path) {
  const auto at = path_address(path);
  const auto probe = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (::connect(probe.get(), at.get(), at.length) != 0 && errno == ECONNREFUSED)
    ::unlink(path.c_str());
  return ::bind(socket, at.get(), at.length) == 0 && ::chmod(path.c_str(), S_IRUSR | S_IWUSR) == 0;
}

void tune_socket(int socket, std::chrono::seconds silence, int probes) noexcept {
  const auto set = [socket](int level, int option, int value) {
    // Best effort: not every kind of socket has these options.
    static_cast<void>(::setsockopt(socket, level, option, &value, sizeof(value)));
  };
  const auto silent = static_cast<int>(silence.count());
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, silent);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, probes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * (silent + probes));
}

} // namespace hicache
