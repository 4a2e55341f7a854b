#include "launch/service_manager.hpp"

#include "base/numbers.hpp"
#include "base/unique_fd.hpp"

#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace hicache {

namespace {

/// First inherited descriptor, as defined by sd_listen_fds(3).
constexpr auto first_descriptor = 3;

std::string_view variable(const char* name) {
  const auto* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : value;
}

/// Numeric value of an environment variable; 0 if it has none.
uint64_t number_in(const char* name) {
  return parse_number<uint64_t>(variable(name)).value_or(0);
}

int option_of(int descriptor, int name) {
  auto value = -1;
  auto length = socklen_t{sizeof(value)};
  return getsockopt(descriptor, SOL_SOCKET, name, &value, &length) == 0 ? value : -1;
}

} // namespace

service_manager::service_manager() : notify_path_(variable("NOTIFY_SOCKET")) {
  const auto own = static_cast<uint64_t>(::getpid());
  if (number_in("LISTEN_PID") == own)
    descriptors_ = number_in("LISTEN_FDS");
  // Longer timeouts count as none, and would not fit the clock.
  const auto longest = std::chrono::microseconds{std::chrono::hours{24 * 366}};
  const auto patience = number_in("WATCHDOG_USEC");
  if (patience > 0 && patience <= static_cast<uint64_t>(longest.count())
      && (variable("WATCHDOG_PID").empty() || number_in("WATCHDOG_PID") == own))
    patience_ = std::chrono::microseconds{patience};
}

result<std::shared_ptr<listener>> service_manager::take_listener() const {
  if (descriptors_ == 0)
    return nullptr;
  if (descriptors_ > 1)
    return fail(ec::invalid_argument, "LISTEN_FDS: the service manager has opened "
                                        + std::to_string(descriptors_) + " sockets; expected one");
  auto address = sockaddr_un{};
  auto length = socklen_t{sizeof(address)};
  const auto is_socket
    = getsockname(first_descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  if (!is_socket || address.sun_family != AF_UNIX || length <= offsetof(sockaddr_un, sun_path)
      || address.sun_path[0] == '\0' || option_of(first_descriptor, SO_TYPE) != SOCK_STREAM
      || option_of(first_descriptor, SO_ACCEPTCONN) != 1)
    return fail(ec::invalid_argument,
                "LISTEN_FDS: what the service manager has opened is no stream "
                "socket that listens at a path; expected ListenStream=/PATH");
  if (fcntl(first_descriptor, F_SETFD, FD_CLOEXEC) != 0
      || fcntl(first_descriptor, F_SETFL, O_NONBLOCK) != 0)
    return fail(ec::io_failure, "LISTEN_FDS: " + std::string{std::strerror(errno)});
  const auto path = std::string{
    address.sun_path, strnlen(address.sun_path, length - offsetof(sockaddr_un, sun_path))};
  return std::make_shared<listener>(first_descriptor, rpc::endpoint{"unix:" + path, 0});
}

void service_manager::tell(const std::string& news) const {
  if (notify_path_.empty())
    return;
  auto address = sockaddr_un{};
  address.sun_family = AF_UNIX;
  const auto length = std::min(notify_path_.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, notify_path_.data(), length);
  if (address.sun_path[0] == '@')
    address.sun_path[0] = '\0'; // Abstract socket: a name without a file.
  const auto socket = unique_fd{::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
  if (sendto(socket.get(), news.data(), news.size(), MSG_NOSIGNAL,
             reinterpret_cast<const sockaddr*>(&address),
             static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length))
      != static_cast<ssize_t>(news.size()))
    spdlog::warn("cannot tell the service manager '{}': {}", news, std::strerror(errno));
}

} // namespace hicache
