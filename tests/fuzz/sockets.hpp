#pragma once

// Sockets of peers that say what a fuzzer wants.

#include "base/check.hpp"
#include "base/unique_fd.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

namespace hicache::test {

inline sockaddr_in loopback_address(uint32_t host, uint16_t port) {
  auto result = sockaddr_in{};
  result.sin_family = AF_INET;
  result.sin_port = htons(port);
  result.sin_addr.s_addr = htonl(host);
  return result;
}

/// A connection to this port of this machine, from another address each time: ports of connections
/// that ended are not free at once.
inline unique_fd connect_from_anywhere(uint16_t port) {
  static auto callers = uint32_t{0};
  constexpr auto peers = uint32_t{1} << 16U;
  auto fd = unique_fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const auto from = loopback_address(INADDR_LOOPBACK + peers + callers++ % peers, 0);
  const auto to = loopback_address(INADDR_LOOPBACK, port);
  HICACHE_CHECK(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&from), sizeof(from)) == 0);
  // libFuzzer's clock interrupts calls that wait.
  HICACHE_CHECK(
    TEMP_FAILURE_RETRY(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)))
    == 0);
  return fd;
}

template <class T>
std::span<const std::byte> bytes_of(const T& x) {
  return std::as_bytes(std::span{&x, 1});
}

/// Sends as much as the peer takes.
inline void send_all(int fd, std::span<const std::byte> rest) {
  while (!rest.empty()) {
    const auto put = TEMP_FAILURE_RETRY(::send(fd, rest.data(), rest.size(), MSG_NOSIGNAL));
    if (put <= 0)
      return;
    rest = rest.subspan(static_cast<size_t>(put));
  }
}

/// @returns false if the peer hangs up before all has come
inline bool receive_all(int fd, std::span<std::byte> rest) {
  while (!rest.empty()) {
    const auto got = TEMP_FAILURE_RETRY(::recv(fd, rest.data(), rest.size(), 0));
    if (got <= 0)
      return false;
    rest = rest.subspan(static_cast<size_t>(got));
  }
  return true;
}

/// Says that nothing follows, and reads until the peer has closed the connection, which it has to
/// do soon.
inline void expect_the_end(int fd) {
  ::shutdown(fd, SHUT_WR);
  constexpr auto patience_ms = 10000;
  char answer[4096];
  do {
    auto watched = pollfd{fd, POLLIN, 0};
    HICACHE_CHECK(TEMP_FAILURE_RETRY(::poll(&watched, 1, patience_ms)) == 1);
  } while (TEMP_FAILURE_RETRY(::recv(fd, answer, sizeof(answer), 0)) > 0);
}

} // namespace hicache::test
