#include "transport/own_listeners.hpp"

#include "base/numbers.hpp"
#include "transport/addresses.hpp"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

namespace hicache {

namespace {

bool has_option(int socket, int option, int expected) {
  auto value = 0;
  auto length = socklen_t{sizeof(value)};
  return ::getsockopt(socket, SOL_SOCKET, option, &value, &length) == 0 && value == expected;
}

} // namespace

std::vector<std::string> listening_addresses() {
  auto addresses = std::vector<std::string>{};
  auto failure = std::error_code{};
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd", failure}) {
    const auto fd = parse_number<int>(entry.path().filename().native()).value_or(-1);
    if (!has_option(fd, SO_PROTOCOL, IPPROTO_TCP) || !has_option(fd, SO_ACCEPTCONN, 1))
      continue;
    auto address = sockaddr_storage{};
    auto length = socklen_t{sizeof(address)};
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0)
      addresses.push_back(format_address(address));
  }
  std::ranges::sort(addresses);
  return addresses;
}

} // namespace hicache
