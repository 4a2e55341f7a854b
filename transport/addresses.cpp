#include "transport/addresses.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <array>
#include <cstring>

namespace hicache {

std::optional<sockaddr_storage> resolve(const std::string& host, const std::string& port,
                                        int flags) {
  auto hints = addrinfo{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  auto* found = static_cast<addrinfo*>(nullptr);
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0)
    return std::nullopt;
  auto address = sockaddr_storage{};
  std::memcpy(&address, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return address;
}

std::optional<std::pair<std::string, std::string>> split_address(const std::string& address) {
  const auto colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size())
    return std::nullopt;
  auto host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  return std::pair{host, address.substr(colon + 1)};
}

std::string format_address(const sockaddr_storage& address) {
  auto host = std::array<char, NI_MAXHOST>{};
  auto port = std::array<char, NI_MAXSERV>{};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), address_length(address),
                    host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV)
      != 0)
    return {};
  const auto text = std::string{host.data()};
  return (address.ss_family == AF_INET6 ? "[" + text + "]" : text) + ":" + port.data();
}

socklen_t address_length(const sockaddr_storage& address) noexcept {
  return address.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
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
