#include "backends/external/store_process.hpp"

#include "base/socket_peer.hpp"
#include "base/system_message.hpp"
#include "base/try.hpp"

#include <fcntl.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace hicache {

namespace {

/// What a process finds, and where.
constexpr auto listener_in_child = 3;

/// How long a store may take to end before it is killed.
constexpr auto end_time = std::chrono::seconds{5};

/// Connections that wait to be accepted.
constexpr auto backlog = 128;

/// Listens at a name that the kernel chooses, which is in no file system and ends with the socket.
result<std::pair<unique_fd, socket_address>> listen_somewhere() {
  auto socket = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  auto address = socket_address{};
  address.bytes.ss_family = AF_UNIX;
  address.length = sizeof(address.bytes);
  if (::bind(socket.get(), address.get(), sizeof(sa_family_t)) != 0
      || ::listen(socket.get(), backlog) != 0
      || ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address.bytes), &address.length)
           != 0)
    return fail(ec::io_failure, "no socket for a store's process: " + system_message(errno));
  return std::pair{std::move(socket), address};
}

} // namespace

result<socket_address> unix_address_of(const std::string& path) {
  constexpr auto most = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > most)
    return fail(ec::invalid_argument, "'" + path + "' is too long for a socket; expected at most "
                                        + std::to_string(most) + " bytes");
  return path_address(path);
}

result<unique_fd> connect_to(const socket_address& address) {
  auto socket = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  if (!socket || ::connect(socket.get(), address.get(), address.length) != 0)
    return fail(ec::peer_unreachable, system_message(errno));
  const auto peer = socket_peer_of(socket.get());
  if (!peer || (peer->user != ::geteuid() && peer->user != 0))
    return fail(ec::peer_unreachable, "another user listens there");
  return socket;
}

result<store_process> store_process::start(const std::string& command) {
  auto listening = HICACHE_TRY(listen_somewhere());
  auto& [listener, address] = listening;
  auto ends = std::array{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    return fail(ec::io_failure, "no pipe for a store's process: " + system_message(errno));
  const auto reader = unique_fd{ends[0]};
  auto writer = unique_fd{ends[1]};
  auto shell
    = shell_process::start(command, std::array{std::pair{reader.get(), STDIN_FILENO},
                                               std::pair{STDERR_FILENO, STDOUT_FILENO},
                                               std::pair{listener.get(), listener_in_child}});
  if (!shell)
    return fail(ec::io_failure,
                "the store's process could not be started: " + shell.error().detail);
  return store_process{std::move(*shell), std::move(writer), address};
}

store_process::~store_process() {
  if (!input_)
    return; // Moved from.
  input_ = {};
  shell_.await(end_time);
}

std::optional<std::string> store_process::end(std::chrono::milliseconds time) {
  const auto status = shell_.await(time);
  return status ? std::optional{describe_end(*status)} : std::nullopt;
}

} // namespace hicache
