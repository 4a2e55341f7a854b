#include "runtime/http_address.hpp"

#include "base/try.hpp"
#include "base/unique_fd.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace hicache {

namespace {

constexpr auto unix_prefix = std::string_view{"unix:"};

/// @pre `path` fits into sockaddr_un, as parse_http_address checks
sockaddr_un address_of(const std::string& path) {
  auto address = sockaddr_un{};
  address.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

const sockaddr* as_generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

} // namespace

result<http_address> parse_http_address(const std::string& text) {
  if (!text.starts_with(unix_prefix)) {
    auto where = HICACHE_TRY(rpc::parse_endpoint(text));
    return http_address{std::move(where), {}};
  }
  auto path = text.substr(unix_prefix.size());
  if (path.empty() || path.size() >= sizeof(sockaddr_un::sun_path))
    return fail(ec::invalid_argument,
                "'" + text + "' is no Unix socket; expected unix:PATH with 1 to "
                  + std::to_string(sizeof(sockaddr_un::sun_path) - 1) + " bytes of path");
  return http_address{{}, std::move(path)};
}

std::string to_string(const http_address& address) {
  return address.is_unix() ? std::string{unix_prefix} + address.socket_path
                           : to_string(address.where);
}

result<int> listen_on_unix_socket(const std::string& path) {
  const auto address = address_of(path);
  const auto refuse = [&](const std::string& why) {
    return fail(ec::invalid_argument, "cannot listen on unix:" + path + ": " + why);
  };
  struct stat found = {};
  if (::lstat(path.c_str(), &found) == 0) {
    if (!S_ISSOCK(found.st_mode))
      return refuse("the path names something else than a socket");
    if (unique_fd{connect_to_unix_socket(path)})
      return refuse("another process listens on it");
    ::unlink(path.c_str());
  }
  auto socket = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  // Connections are possible only after listen(), so the mode is set in time.
  if (!socket || ::bind(socket.get(), as_generic(address), sizeof address) != 0
      || ::chmod(path.c_str(), S_IRUSR | S_IWUSR) != 0 || ::listen(socket.get(), SOMAXCONN) != 0)
    return refuse(std::generic_category().message(errno));
  return socket.release();
}

int connect_to_unix_socket(const std::string& path) {
  const auto address = address_of(path);
  auto socket = unique_fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (socket && ::connect(socket.get(), as_generic(address), sizeof address) != 0)
    return -1;
  return socket.release();
}

} // namespace hicache
