#include "transport/addresses.hpp"

#include "base/socket_address.hpp"

#include <netdb.h>
#include <netinet/in.h>

#include <array>

namespace hicache {

std::optional<sockaddr_storage> resolve(const std::string& host, const std::string& port,
                                        int flags) {
  const auto found = addresses_of(host, port, flags);
  return found.empty() ? std::nullopt : std::optional{found.front().bytes};
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

} // namespace hicache
