#include "transport/rank_sockets.hpp"

#include "base/socket_address.hpp"
#include "base/system_message.hpp"
#include "transport/rank_limits.hpp"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

namespace hicache {

namespace {

constexpr auto path_prefix = std::string_view{"unix:"};

/// Empty if the host cannot be resolved.
std::vector<socket_address> addresses_of(const socket_reducer_options& options, int flags) {
  if (options.host.starts_with(path_prefix))
    return {path_address(options.host.substr(path_prefix.size()))};
  return hicache::addresses_of(options.host, std::to_string(options.port), flags);
}

unique_fd make_socket(const socket_address& to) {
  return unique_fd{::socket(to.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
}

void tune(int fd) {
  constexpr auto probes = static_cast<int>(rank_limits::peer_silence.count()) - 1;
  tune_socket(fd, std::chrono::seconds{1}, probes);
}

/// Binds to the address, or to its path if there is one.
bool bind_to(int fd, const socket_address& at, const std::string& path) {
  if (!path.empty())
    return bind_path(fd, path);
  const auto yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  return ::bind(fd, at.get(), at.length) == 0;
}

/// @returns 0 or errno
int connect_until(int fd, const socket_address& to, std::chrono::steady_clock::time_point until) {
  if (::connect(fd, to.get(), to.length) == 0)
    return 0;
  if (errno != EINPROGRESS)
    return errno;
  const auto left
    = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  auto socket = pollfd{fd, POLLOUT, 0};
  if (::poll(&socket, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) != 1)
    return ETIMEDOUT;
  auto code = 0;
  auto length = socklen_t{sizeof(code)};
  ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &length);
  return code;
}

} // namespace

std::string place_of(const socket_reducer_options& options) {
  if (options.host.starts_with(path_prefix))
    return options.host;
  const auto is_bare = options.host.find(':') == std::string::npos;
  return (is_bare ? options.host : "[" + options.host + "]") + ":" + std::to_string(options.port);
}

result<rank_listener> rank_listener::open(const socket_reducer_options& options) {
  const auto is_path = options.host.starts_with(path_prefix);
  const auto path = is_path ? options.host.substr(path_prefix.size()) : std::string{};
  auto why = std::string{"no machine has this name"};
  for (const auto& at : addresses_of(options, AI_PASSIVE)) {
    auto socket = make_socket(at);
    if (socket && bind_to(socket.get(), at, path) && ::listen(socket.get(), SOMAXCONN) == 0)
      return rank_listener{std::move(socket), path};
    why = system_message(errno);
  }
  return fail(ec::invalid_argument, "rank 0 cannot wait for the other ranks at " + place_of(options)
                                      + " (" + why + "); expected a free port of this machine");
}

rank_listener::~rank_listener() {
  if (socket_ && !path_.empty())
    ::unlink(path_.c_str());
}

std::pair<unique_fd, std::string> rank_listener::accept() {
  auto from = socket_address{};
  from.length = sizeof(from.bytes);
  auto socket = unique_fd{::accept4(socket_.get(), reinterpret_cast<sockaddr*>(&from.bytes),
                                    &from.length, SOCK_CLOEXEC | SOCK_NONBLOCK)};
  if (!socket)
    return {};
  tune(socket.get());
  auto host = std::array<char, NI_MAXHOST>{};
  if (from.bytes.ss_family == AF_UNIX
      || ::getnameinfo(from.get(), from.length, host.data(), host.size(), nullptr, 0,
                       NI_NUMERICHOST)
           != 0)
    return {std::move(socket), "a process of this machine"};
  return {std::move(socket), host.data()};
}

result<unique_fd> connect_to_rank(const socket_reducer_options& options,
                                  std::chrono::steady_clock::time_point until) {
  auto why = std::string{"no machine has this name"};
  for (const auto& to : addresses_of(options, 0)) {
    auto socket = make_socket(to);
    const auto code = socket ? connect_until(socket.get(), to, until) : errno;
    if (code == 0) {
      tune(socket.get());
      return socket;
    }
    why = system_message(code);
  }
  return fail(ec::peer_unreachable, why);
}

} // namespace hicache
